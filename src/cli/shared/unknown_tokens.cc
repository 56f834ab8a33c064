#include "cli/shared/unknown_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/formats/json_fields.h"
#include "io/formats/text.h"

namespace raffia::internal::cli {
namespace {

constexpr size_t kMaxExamples = 5;

size_t size_of_word(std::string_view text, size_t at) {
  return std::min(text.find_first_of(" \t\r\n\f\v", at + 1), text.size()) - at;
}

}  // namespace

void UnknownTokens::add(std::string_view text, std::span<const int32_t> ids) {
  const auto found = std::ranges::count(ids, tokenizer_.unknown());
  if (found == 0) return;
  count_ += found;
  find_examples(text);
}

void UnknownTokens::find_examples(std::string_view text) {
  for (size_t at = 0, size = 0; at < text.size() && examples_.size() < kMaxExamples; at += size) {
    size = words_ ? size_of_word(text, at) : character_at(text, at).size;
    const std::string part(text.substr(at, size));
    if (!tried_.insert(part).second) continue;
    const std::vector<int32_t> ids = tokenizer_.encode_rest(part);
    if (std::ranges::find(ids, tokenizer_.unknown()) == ids.end()) continue;
    const std::string shown = words_ ? part.substr(part.find_first_not_of(" \t\r\n\f\v")) : part;
    if (std::ranges::find(examples_, shown) == examples_.end()) examples_.push_back(shown);
  }
}

std::string UnknownTokens::summary() const {
  if (count_ == 0) return "";
  std::vector<std::string> shown;
  for (const std::string& each : examples_) shown.push_back(json_text(each));
  const char* noun = words_ ? "word" : "character";
  return count_ == 1
             ? fmt::format("1 {} is not in the vocabulary and was read as an unknown token: {}", noun, fmt::join(shown, ", "))
             : fmt::format("{} {}s are not in the vocabulary and were read as unknown tokens: {}{}",
                           grouped(static_cast<uint64_t>(count_)), noun, fmt::join(shown, ", "),
                           examples_.size() == kMaxExamples ? ", .." : "");
}

}  // namespace raffia::internal::cli
