// Every character (Unicode code point) of the training text is a token, in the order of code points.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "io/formats/text.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

class CharTokenizer : public Tokenizer {
 public:
  // `characters`: valid UTF-8, code points ascending.
  explicit CharTokenizer(std::string characters) : characters_(std::move(characters)) {
    for (size_t at = 0; at < characters_.size();) {
      const Character character = character_at(characters_, at);
      ids_.resize(character.code + 1, kUnknown);
      ids_[character.code] = static_cast<int32_t>(kSpecialIds + surfaces_.size());
      surfaces_.push_back(characters_.substr(at, character.size));
      at += character.size;
    }
  }

  std::string kind() const override { return "char"; }
  int64_t vocabulary() const override { return kSpecialIds + static_cast<int64_t>(surfaces_.size()); }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), characters_); }
  void save(const std::filesystem::path& directory) const override {
    save_tokenizer_file(directory, kind(), {{"characters", characters_}});
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      ids.push_back(character.code < ids_.size() ? ids_[character.code] : kUnknown);
      at += character.size;
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (!is_special(id, vocabulary())) text += surfaces_[static_cast<size_t>(id - kSpecialIds)];
    }
    return text;
  }

 private:
  std::string characters_;
  std::vector<int32_t> ids_;           // by code point, up to the highest in use
  std::vector<std::string> surfaces_;  // by id, after the special ones
};

}  // namespace

std::unique_ptr<Tokenizer> train_char_tokenizer(Texts texts) {
  std::vector<bool> seen(kNoCode);
  std::set<std::string_view> characters;  // UTF-8 sorts as code points do
  for (const std::string_view text : texts) {
    for (size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      if (!seen[character.code]) characters.insert(text.substr(at, character.size));
      seen[character.code] = true;
      at += character.size;
    }
  }
  std::string all;
  for (const std::string_view character : characters) all += character;
  return std::make_unique<CharTokenizer>(std::move(all));
}

std::unique_ptr<Tokenizer> char_tokenizer_from(JsonFields& fields) {
  std::string characters = fields.string("characters");
  if (characters.empty()) fields.refuse("characters", "is empty, expected at least one");
  int64_t last = -1;
  for (size_t at = 0; at < characters.size();) {
    const Character character = character_at(characters, at);
    if (character.code == kNoCode) fields.refuse("characters", fmt::format("is not text at byte {}", at));
    if (character.code <= last) {
      fields.refuse("characters", fmt::format("is out of order at byte {}: U+{:04X} after U+{:04X}", at, character.code, last));
    }
    last = character.code;
    at += character.size;
  }
  return std::make_unique<CharTokenizer>(std::move(characters));
}

}  // namespace raffia::internal
