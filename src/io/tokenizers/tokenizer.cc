// Common to all tokenizers: their names, tokenizer.json, and the checks of training text.
#include "raffia/tokenizer.h"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia {

using namespace internal;
namespace {

constexpr int64_t kVersion = 1;
constexpr uint64_t kMaxBytesOfFile = uint64_t{1} << 28;

}  // namespace

TokenizerSpec parse_tokenizer_spec(std::string_view text) {
  const size_t colon = text.find(':');
  TokenizerSpec spec = {.kind = std::string(text.substr(0, colon))};
  const bool sized = spec.kind == "word" || spec.kind == "sp";
  require(sized || spec.kind == "byte" || spec.kind == "char",
          "parse_tokenizer_spec: \"{}\", expected byte, char, word, word:SIZE, sp or sp:SIZE", text);
  if (colon == std::string_view::npos) return spec;
  require(sized, "parse_tokenizer_spec: \"{}\": {} takes no size", text, spec.kind);
  const std::string_view size = text.substr(colon + 1);
  const auto [stop, error] = std::from_chars(size.data(), size.data() + size.size(), spec.size);
  require(error == std::errc() && stop == size.data() + size.size() && spec.size >= 1 && spec.size <= kMaxTokens,
          "parse_tokenizer_spec: \"{}\" has size \"{}\", expected 1 to {}", text, size, kMaxTokens);
  return spec;
}

std::unique_ptr<Tokenizer> train_tokenizer(const TokenizerSpec& spec, std::span<const std::string_view> texts) {
  if (spec.kind == "byte") return make_byte_tokenizer();
  require(std::ranges::any_of(texts, [](std::string_view text) { return !text.empty(); }),
          "train_tokenizer: the text is empty, expected text to train on");
  for (const std::string_view text : texts) {
    if (const auto why = why_not_text(text)) throw InvalidArgument(fmt::format("train_tokenizer: {}", *why));
  }
  require(spec.size >= 0 && spec.size <= kMaxTokens, "train_tokenizer: size is {}, expected 0 to {}", spec.size, kMaxTokens);
  if (spec.kind == "char") return train_char_tokenizer(texts);
  if (spec.kind == "word") return train_word_tokenizer(texts, spec.size);
  if (spec.kind == "sp") return train_sp_tokenizer(texts, spec.size);
  throw InvalidArgument(fmt::format("train_tokenizer: kind \"{}\", expected byte, char, word or sp", spec.kind));
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kTokenizerFile;
  return tokenizer_from_json(read_file(path, kMaxBytesOfFile), directory);
}

std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::filesystem::path& directory) {
  JsonFields fields = JsonFields::parse(text, (directory / kTokenizerFile).string());
  if (!fields.has("kind") && fields.has("model")) {
    throw FormatError(
        fmt::format("{}: is a tokenizer of Hugging Face, which has the same name and another format: expected one of "
                    "Raffia (raffia import hf makes a model directory)",
                    fields.where()));
  }
  const std::string kind = fields.string("kind");
  fields.integer("version", kVersion, kVersion);
  std::unique_ptr<Tokenizer> tokenizer;
  if (kind == "byte") {
    tokenizer = make_byte_tokenizer();
  } else if (kind == "char") {
    tokenizer = char_tokenizer_from(fields);
  } else if (kind == "word") {
    tokenizer = word_tokenizer_from(fields);
  } else if (kind == "sp") {
    tokenizer = sp_tokenizer_from(fields, directory);
  } else if (kind == "bpe") {
    tokenizer = bpe_tokenizer_from(fields);
  } else if (kind == "scored") {
    tokenizer = scored_tokenizer_from(fields);
  } else {
    fields.refuse("kind", fmt::format("is \"{}\", expected byte, char, word, sp, bpe or scored", kind));
  }
  fields.expect_no_more();
  return tokenizer;
}

void internal::save_tokenizer_file(const std::filesystem::path& directory, std::string_view kind,
                                   const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json json = {{"kind", kind}, {"version", kVersion}};
  json.update(fields);
  write_file(directory / kTokenizerFile, json.dump(1) + "\n");
}

uint64_t internal::tokenizer_fingerprint(std::string_view kind, std::string_view content) {
  const uint64_t of_kind = XXH3_64bits(kind.data(), kind.size());
  return XXH3_64bits_withSeed(content.data(), content.size(), of_kind);
}

void internal::require_token(int32_t id, int64_t vocabulary) {
  require(id >= 0 && id < vocabulary, "Tokenizer::decode: id {}, expected 0 to {}", id, vocabulary - 1);
}

bool internal::is_special(int32_t id, int64_t vocabulary) {
  require_token(id, vocabulary);
  return id < kSpecialIds;
}

}  // namespace raffia
