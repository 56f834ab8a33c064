// Texts as tokens: training and evaluation data of a run, and their tokenizer.
#ifndef RAFFIA_TORCH_TRAIN_TEXTS_H_
#define RAFFIA_TORCH_TRAIN_TEXTS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/data/texts.h"
#include "raffia/tokenizer.h"
#include "torch/train/data.h"
#include "torch/train/evaluate.h"
#include "torch/train/options.h"

namespace raffia::internal::train {

struct Texts {
  std::string train, valid;
  std::string test = {};  // empty: none
};

// Without options.valid, the end of options.data is used for evaluation, from the start of a line if there is one nearby.
Texts read_texts(const TrainOptions& options);

// A text for scoring a model.
struct ScoredText {
  std::vector<int32_t> ids;
  TextFacts facts;
};
ScoredText scored_text(const Tokenizer& tokenizer, std::string_view text);

Sequences encode_all(const Tokenizer& tokenizer, std::span<const std::string> texts);

// A resumed run loads its tokenizer from options.out, a run that starts from a model from options.init. A new run trains
// options.tokenizer on `texts`.
std::unique_ptr<Tokenizer> task_tokenizer(TrainOptions& options, bool goes_on, std::span<const std::string_view> texts);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_TEXTS_H_
