// How byte-level vocabularies split a text into words before merging: the regular expressions of GPT-2 and LLaMA 3, each with
// its own matcher.
#ifndef RAFFIA_IO_TOKENIZERS_WORD_SPLITS_H_
#define RAFFIA_IO_TOKENIZERS_WORD_SPLITS_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace raffia::internal {

enum class WordSplit : uint8_t {
  none,         // the text is one word
  gpt2,         // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  gpt2_digits,  // each digit is a word; the text between them as above
  llama3,       // kLlama3Pattern
};

// By their numbers, for files.
constexpr std::array<std::string_view, 4> kWordSplits = {"none", "gpt2", "gpt2_digits", "llama3"};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The words of any bytes, in order; concatenated they are the text. Bytes that are not UTF-8 count as punctuation.
std::vector<std::string_view> words_of(std::string_view text, WordSplit split);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_WORD_SPLITS_H_
