#include "runtime/text_loss.h"

#include <algorithm>

#include "core/check.h"
#include "raffia/session.h"
#include "runtime/sampler.h"

namespace raffia::internal::runtime {
TextLoss loss_of_text(const std::shared_ptr<const Model>& model, std::span<const int32_t> ids) {
  require(ids.size() >= 2, "loss_of_text: {} tokens, expected at least 2", ids.size());
  const auto length = static_cast<size_t>(std::min(kLossSegment, Session(model).room()));
  require(length >= 2, "loss_of_text: the model reads texts of {} tokens, expected at least 2", length);
  TextLoss loss;
  for (size_t first = 0; first + 1 < ids.size(); first += length) {
    const auto segment = ids.subspan(first, std::min(length, ids.size() - first));
    Session session(model);
    session.prefill(segment, [&](int64_t index, std::span<const float> logits) {
      const auto next = static_cast<size_t>(index) + 1;
      if (next == segment.size()) return;
      ++loss.tokens;
      loss.nats += (log_sum(logits) - static_cast<double>(logits[static_cast<size_t>(segment[next])]) - loss.nats) /
                   static_cast<double>(loss.tokens);
    });
  }
  return loss;
}

}  // namespace raffia::internal::runtime
