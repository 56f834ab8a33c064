#include "runtime/text_loss.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "raffia/session.h"

namespace raffia::internal::runtime {
namespace {

double nats_of(std::span<const float> logits, int32_t id) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - max);
  return max + std::log(sum) - logits[static_cast<size_t>(id)];
}

}  // namespace

TextLoss loss_of_text(const std::shared_ptr<const Model>& model, std::span<const int32_t> ids) {
  require(ids.size() >= 2, "loss_of_text: {} tokens, expected at least 2", ids.size());
  TextLoss loss;
  for (size_t first = 0; first + 1 < ids.size(); first += static_cast<size_t>(kLossSegment)) {
    const auto segment = ids.subspan(first, std::min(static_cast<size_t>(kLossSegment), ids.size() - first));
    Session session(model);
    session.prefill(segment, [&](int64_t index, std::span<const float> logits) {
      const auto next = static_cast<size_t>(index) + 1;
      if (next == segment.size()) return;
      ++loss.tokens;
      loss.nats += (nats_of(logits, segment[next]) - loss.nats) / static_cast<double>(loss.tokens);
    });
  }
  return loss;
}

}  // namespace raffia::internal::runtime
