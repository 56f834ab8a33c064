// The kinds of tokenizers, for tokenizer.cc alone: each is learned from text and read back from its file.
#ifndef RAFFIA_IO_TOKENIZER_KINDS_H_
#define RAFFIA_IO_TOKENIZER_KINDS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "io/json_fields.h"
#include "io/model_directory.h"
#include "raffia/tokenizer.h"

namespace raffia {

using Texts = std::span<const std::string_view>;

constexpr int32_t kSpecialIds = 4;        // pad, unknown, begin, end come first
constexpr int64_t kMostTokens = 1 << 22;  // far above any vocabulary in use

std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Texts are valid UTF-8 and not all empty.
std::unique_ptr<Tokenizer> train_char_tokenizer(Texts texts);
std::unique_ptr<Tokenizer> train_word_tokenizer(Texts texts, int64_t size);
std::unique_ptr<Tokenizer> train_sp_tokenizer(Texts texts, int64_t size);

// From what is left of tokenizer.json in `directory` after kind and version. Throw FormatError.
std::unique_ptr<Tokenizer> char_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> word_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> scored_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> bpe_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> sp_tokenizer_from(JsonFields& fields, const std::filesystem::path& directory);

// A SentencePiece model alone; `where` names it. Where SentencePiece is a module, only the module has it.
std::unique_ptr<Tokenizer> sp_tokenizer_over(std::string model, std::string_view where);

// Writes tokenizer.json: kind and version, then these fields.
void save_tokenizer_file(const std::filesystem::path& directory, std::string_view kind, const nlohmann::ordered_json& fields);

// What fingerprint() is: of the kind, and of all that decides what its ids mean.
uint64_t tokenizer_fingerprint(std::string_view kind, std::string_view content);

void require_token(int32_t id, int64_t vocabulary);  // throws InvalidArgument for ids that are none

// True for ids that leave no trace in text. Throws InvalidArgument for ids that are none.
bool is_special(int32_t id, int64_t vocabulary);

}  // namespace raffia

#endif  // RAFFIA_IO_TOKENIZER_KINDS_H_
