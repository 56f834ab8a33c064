// Texts of a run from its options: what is learned from, what is evaluated on, and the tokenizer of both.
#ifndef RAFFIA_TORCH_TRAIN_TEXTS_H_
#define RAFFIA_TORCH_TRAIN_TEXTS_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "io/tokenizer.h"
#include "torch/train/options.h"

namespace raffia::train {

struct Texts {
  std::string train, valid;
  std::string test = {};  // empty: none
};

// Without options.valid, the end of options.data is evaluated on, from the start of a line if there is one near.
Texts read_texts(const TrainOptions& options);

// A run that goes on has its tokenizer in options.out. A new one learns it from `texts`, and options.tokenizer says what it is.
std::unique_ptr<Tokenizer> task_tokenizer(TrainOptions& options, bool goes_on, std::span<const std::string_view> texts);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_TEXTS_H_
