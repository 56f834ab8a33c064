// Texts as tokens: what a run learns from and is evaluated on, from its options, and the tokenizer of both.
#ifndef RAFFIA_TORCH_TRAIN_TEXTS_H_
#define RAFFIA_TORCH_TRAIN_TEXTS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"
#include "torch/train/data.h"
#include "torch/train/evaluate.h"
#include "torch/train/options.h"

namespace raffia::train {

struct Texts {
  std::string train, valid;
  std::string test = {};  // empty: none
};

// Without options.valid, the end of options.data is evaluated on, from the start of a line if there is one near.
Texts read_texts(const TrainOptions& options);

// What a tokenizer of this kind reads: text that is checked to be text, or any bytes ("byte"). Not empty. Files may be
// compressed (gz, xz).
std::string read_for(std::string_view kind, const std::filesystem::path& path);

// The ids of a file for a language model. Where its vocabulary begins texts (tokenizer.begins_texts(), imported models), a line
// "<|endoftext|>" stands between the texts of a file, and each text is one begin() and its ids; else the file is one text.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);

// A text as a model is scored on it.
struct ScoredText {
  std::vector<int32_t> ids;
  TextFacts facts;
};
ScoredText scored_text(const Tokenizer& tokenizer, std::string_view text);

Sequences encode_all(const Tokenizer& tokenizer, std::span<const std::string> texts);

// A run that goes on has its tokenizer in options.out, one that starts from a model in options.init. A new one learns it from
// `texts`, and options.tokenizer says what it is.
std::unique_ptr<Tokenizer> task_tokenizer(TrainOptions& options, bool goes_on, std::span<const std::string_view> texts);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_TEXTS_H_
