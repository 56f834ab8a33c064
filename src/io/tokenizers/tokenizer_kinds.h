// The kinds of tokenizers, only for tokenizer.cc: each can be trained on text and loaded from its file.
#ifndef RAFFIA_IO_TOKENIZERS_TOKENIZER_KINDS_H_
#define RAFFIA_IO_TOKENIZERS_TOKENIZER_KINDS_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "io/formats/json_fields.h"
#include "io/tokenizers/tokenizer_file.h"
#include "raffia/tokenizer.h"

namespace raffia::internal {

using Texts = std::span<const std::string_view>;

constexpr int32_t kSpecialIds = 4;       // pad, unknown, begin, end come first
constexpr int64_t kMaxTokens = 1 << 22;  // far above any vocabulary in use

std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Texts are valid UTF-8 and not all empty.
std::unique_ptr<Tokenizer> train_char_tokenizer(Texts texts);
std::unique_ptr<Tokenizer> train_word_tokenizer(Texts texts, int64_t size);
std::unique_ptr<Tokenizer> train_sp_tokenizer(Texts texts, int64_t size);

// From the fields of tokenizer.json in `directory` after kind and version. Throw FormatError.
std::unique_ptr<Tokenizer> char_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> word_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> scored_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> bpe_tokenizer_from(JsonFields& fields);
std::unique_ptr<Tokenizer> sp_tokenizer_from(JsonFields& fields, const std::filesystem::path& directory);

// Only a SentencePiece model; `where` names it. If SentencePiece is a module, this function is in the module.
std::unique_ptr<Tokenizer> sp_tokenizer_over(std::string model, std::string_view where);

// Writes tokenizer.json: kind and version, then these fields.
void save_tokenizer_file(const std::filesystem::path& directory, std::string_view kind, const nlohmann::ordered_json& fields);

// The value of fingerprint(): a hash of the kind and of everything that determines the meaning of ids.
uint64_t tokenizer_fingerprint(std::string_view kind, std::string_view content);

void require_token(int32_t id, int64_t vocabulary);  // throws InvalidArgument for ids out of range

// True for ids that decode() skips. Throws InvalidArgument for ids out of range.
bool is_special(int32_t id, int64_t vocabulary);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_TOKENIZER_KINDS_H_
