// The loss of a language model on a text, as the runtime computes it: with weights of any type.
#ifndef RAFFIA_RUNTIME_TEXT_LOSS_H_
#define RAFFIA_RUNTIME_TEXT_LOSS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "raffia/model.h"

namespace raffia::internal::runtime {

constexpr int64_t kLossSegment = 256;

struct TextLoss {
  int64_t tokens = 0;  // that were predicted
  double nats = 0;     // per token
};

// Reads `ids` in segments of 256 tokens, or of as many as the model has positions, each by a new session; all tokens of a segment
// but the first are predicted. Throws InvalidArgument if there is nothing to predict, or if the model is no language model.
TextLoss loss_of_text(const std::shared_ptr<const Model>& model, std::span<const int32_t> ids);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_TEXT_LOSS_H_
