// BLEU of translations, with the same results as sacreBLEU with its defaults (13a tokens, case kept, one reference, exponential
// smoothing).
#ifndef RAFFIA_IO_DATA_BLEU_H_
#define RAFFIA_IO_DATA_BLEU_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace raffia::internal {

struct Bleu {
  double score = 0;                       // 0..100
  std::array<double, 4> precisions = {};  // of 1- to 4-grams, in percent, smoothed
  std::array<int64_t, 4> matches = {}, totals = {};
  double brevity_penalty = 1;
  int64_t hypothesis_length = 0, reference_length = 0;  // tokens
};

// Sentence i of the translations against sentence i of the references, as plain text. Throws InvalidArgument if their numbers
// differ.
Bleu corpus_bleu(std::span<const std::string> hypotheses, std::span<const std::string> references);

// The settings of a score: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:raffia-0.1.0".
std::string bleu_signature();

// The 13a tokens of a sentence, separated by one space: punctuation is a separate token, except in numbers ("1,000.50") and for
// apostrophes and dashes within words.
std::string tokens_13a(std::string_view sentence);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_DATA_BLEU_H_
