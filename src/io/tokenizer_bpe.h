// Byte pair encoding with a list of merges, as the files of Hugging Face describe it: pieces of bytes (GPT-2, LLaMA 3), or pieces
// of characters that write a space as U+2581 and spell what they do not cover in bytes (LLaMA 2).
#ifndef RAFFIA_IO_TOKENIZER_BPE_H_
#define RAFFIA_IO_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/word_splits.h"
#include "raffia/tokenizer.h"

namespace raffia {

enum class BpeForm : uint8_t {
  bytes,  // a piece writes each of its bytes as a visible character, as GPT-2 does
  marks,  // a piece is text with U+2581 for spaces; "<0xNN>" is a byte
};
enum class LeadingSpace : uint8_t {
  none,    // texts stay as they are
  always,  // a space goes before a text, and before what follows an added piece
  first,   // a space goes before a text
};

// By their numbers, for files.
constexpr std::array<std::string_view, 2> kBpeForms = {"bytes", "marks"};
constexpr std::array<std::string_view, 3> kLeadingSpaces = {"none", "always", "first"};

struct BpeModel {
  BpeForm form = BpeForm::bytes;
  WordSplit split = WordSplit::gpt2;                // form bytes
  LeadingSpace leading_space = LeadingSpace::none;  // form marks
  bool whole_words = false;                         // a word that is a piece stays whole, whatever merges say
  std::vector<std::string> pieces;                  // by id; an empty one is not in use
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of neighbours, the first merge first
  std::vector<int32_t> added;                       // pieces that are found in text before anything else, as they are written
  std::vector<int32_t> special;                     // of these: those that leave no trace in text
  int32_t begin = -1, end = -1;
  bool begins_texts = false;  // language models saw `begin` before each text
};

// Throws FormatError that names `where` for a vocabulary that cannot write every text, or whose merges do not make pieces.
// decode() takes away a leading space right after `begin`, and nowhere else.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeModel model, std::string_view where);

}  // namespace raffia

#endif  // RAFFIA_IO_TOKENIZER_BPE_H_
