// Byte pair encoding with a list of merges, as in the files of Hugging Face: pieces of bytes (GPT-2, LLaMA 3), or pieces of
// characters with U+2581 for a space and byte fallback for characters without a piece (LLaMA 2).
#ifndef RAFFIA_IO_TOKENIZERS_TOKENIZER_BPE_H_
#define RAFFIA_IO_TOKENIZERS_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/tokenizers/word_splits.h"
#include "raffia/tokenizer.h"

namespace raffia::internal {

enum class BpeForm : uint8_t {
  bytes,  // a piece writes each of its bytes as a visible character, as GPT-2 does
  marks,  // a piece is text with U+2581 for spaces; "<0xNN>" is a byte
};
enum class LeadingSpace : uint8_t {
  none,    // texts are not changed
  always,  // a space is put before a text, and after each added piece
  first,   // a space is put before a text
};

// By their numbers, for files.
constexpr std::array<std::string_view, 2> kBpeForms = {"bytes", "marks"};
constexpr std::array<std::string_view, 3> kLeadingSpaces = {"none", "always", "first"};

struct BpeModel {
  BpeForm form = BpeForm::bytes;
  WordSplit split = WordSplit::gpt2;                // form bytes
  LeadingSpace leading_space = LeadingSpace::none;  // form marks
  bool whole_words = false;                         // a word that is a piece is one token, without using merges
  std::vector<std::string> pieces;                  // by id; an empty one is not in use
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of neighbours, the first merge first
  std::vector<int32_t> added;                       // pieces that are found in text before anything else, literally
  std::vector<int32_t> special;                     // those of the added pieces that decode() skips
  int32_t begin = -1, end = -1;
  bool begins_texts = false;  // language models were trained with `begin` before each text
};

// Throws FormatError, which names `where`, if the vocabulary cannot encode every text or a merge does not give a piece.
// decode() removes a leading space directly after `begin` and nowhere else.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeModel model, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_TOKENIZER_BPE_H_
