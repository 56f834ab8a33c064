#include "raffia/text_stream.h"

#include <algorithm>
#include <string_view>

#include "io/formats/text.h"

namespace raffia {

using namespace internal;
namespace {

// Number of preceding tokens that can change the text of a token: a space before a word, the rest of a character.
constexpr size_t kContext = 8;

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const int32_t> before) : tokenizer_(&tokenizer) {
  const std::span<const int32_t> context = before.last(std::min(before.size(), kContext));
  ids_.assign(context.begin(), context.end());
  told_ = tokenizer_->decode(ids_);
}

std::string TextStream::add(int32_t id) {
  ids_.push_back(id);
  std::string all = tokenizer_->decode(ids_);
  // If the tokenizer changed text that was already returned, there is no new text yet.
  if (all.size() < told_.size() || all.compare(0, told_.size(), told_) != 0) return "";
  const std::string_view fresh = std::string_view(all).substr(told_.size());
  std::string text(fresh.substr(0, end_of_whole_characters(fresh)));
  if (text.size() == fresh.size() && ids_.size() >= 2 * kContext) {
    ids_.erase(ids_.begin(), ids_.end() - static_cast<ptrdiff_t>(kContext));
    told_ = tokenizer_->decode(ids_);
  } else {
    told_ += text;
  }
  return text;
}

std::string TextStream::rest() const {
  const std::string all = tokenizer_->decode(ids_);
  return all.size() > told_.size() ? all.substr(told_.size()) : "";
}

}  // namespace raffia
