// Texts as language models are trained and scored on them.
#ifndef RAFFIA_IO_DATA_TEXTS_H_
#define RAFFIA_IO_DATA_TEXTS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"

namespace raffia::internal {

// Reads a file for a tokenizer of this kind: checked to be text, or any bytes ("byte"). Throws if it is empty. Files may be
// compressed (gz, xz).
std::string read_for(std::string_view kind, const std::filesystem::path& path);

// The ids of a file for a language model. If the vocabulary begins texts (tokenizer.begins_texts(), imported models), the texts
// of a file are separated by lines "<|endoftext|>", and each text is begin() and its ids; else the file is one text.
std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_DATA_TEXTS_H_
