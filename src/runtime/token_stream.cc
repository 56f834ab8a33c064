#include "runtime/token_stream.h"

#include <algorithm>
#include <utility>

#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal::runtime {
namespace {

bool is_learned_here(std::string_view kind) { return kind == "byte" || kind == "char" || kind == "word" || kind == "sp"; }

}  // namespace

TokenStream::TokenStream(const Tokenizer& tokenizer, bool begins)
    : TokenStream(tokenizer, begins, is_learned_here(tokenizer.kind()) ? kLongestLine : kLongestText) {}

TokenStream::TokenStream(const Tokenizer& tokenizer, bool begins, size_t limit)
    : tokenizer_(tokenizer),
      kind_(tokenizer.kind()),
      learned_here_(is_learned_here(kind_)),
      limit_(limit),
      wants_begin_(begins && tokenizer.begins_texts()),
      wants_space_(begins),
      wants_opening_(begins) {}

size_t TokenStream::certain() const {
  if (kind_ == "byte") return rest_.size();
  if (kind_ == "char") return end_of_whole_characters(rest_);
  if (!learned_here_ && rest_.size() <= limit_) return 0;
  if (const size_t line_end = rest_.rfind('\n'); line_end != std::string::npos) return line_end + 1;
  if (rest_.size() <= limit_) return 0;
  // A space belongs to the word after it.
  if (const size_t space = rest_.find_last_of(" \t"); space != std::string::npos && space > 0) return space;
  return end_of_whole_characters(rest_);
}

std::vector<int32_t> TokenStream::push(std::string_view text) {
  rest_ += text;
  return take(certain());
}

std::vector<int32_t> TokenStream::finish() {
  std::vector<int32_t> ids = take(rest_.size());
  return std::exchange(wants_opening_, false) ? opening_of(tokenizer_) : ids;
}

std::vector<int32_t> TokenStream::take(size_t size) {
  std::vector<int32_t> ids;
  if (std::exchange(wants_begin_, false)) ids.push_back(tokenizer_.begin());
  if (size > 0) {
    const std::string_view text = std::string_view(rest_).substr(0, size);
    const std::vector<int32_t> more = std::exchange(wants_space_, false) ? tokenizer_.encode(text) : tokenizer_.encode_rest(text);
    if (on_encoded) on_encoded(text, more);
    ids.insert(ids.end(), more.begin(), more.end());
    rest_.erase(0, size);
  }
  if (!ids.empty()) wants_opening_ = false;
  return ids;
}

std::vector<int32_t> tokens_of(const Tokenizer& tokenizer, std::string_view text, bool begins) {
  TokenStream stream(tokenizer, begins);
  std::vector<int32_t> ids = stream.push(text);
  const std::vector<int32_t> rest = stream.finish();
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::vector<int32_t> line_end_of(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids = tokenizer.encode("\n");
  const bool unknown = is_learned_here(tokenizer.kind()) && std::ranges::find(ids, Tokenizer::kUnknown) != ids.end();
  return unknown ? std::vector<int32_t>{} : ids;
}

std::vector<int32_t> opening_of(const Tokenizer& tokenizer) {
  if (tokenizer.begins_texts()) return {tokenizer.begin()};
  if (std::vector<int32_t> ids = line_end_of(tokenizer); !ids.empty()) return ids;
  if (tokenizer.begin() >= 0) return {tokenizer.begin()};
  throw Error("the prompt is empty, and this vocabulary has no begin token: expected a prompt");
}

}  // namespace raffia::internal::runtime
