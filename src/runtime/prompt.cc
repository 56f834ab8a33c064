#include "runtime/prompt.h"

#include <algorithm>
#include <utility>

namespace raffia::internal::runtime {

Prompt::Prompt(Session& session, OnEncoded on_encoded)
    : session_(session), stream_(session.model().tokenizer(), session.position() == 0) {
  stream_.on_encoded = std::move(on_encoded);
}

void Prompt::add(std::string_view text) {
  const size_t before = stream_.held() + text.size();
  const std::vector<int32_t> ids = stream_.push(text);
  keep(ids, before - stream_.held());
}

void Prompt::end() {
  const size_t before = stream_.held();
  keep(stream_.finish(), before);
  ended_ = true;
}

void Prompt::keep(std::span<const int32_t> ids, size_t bytes) {
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  bytes_ += static_cast<double>(bytes);
}

void Prompt::read(const std::function<bool(double bytes)>& after_block) {
  const double bytes_per_token = tokens_.empty() ? 0 : bytes_ / static_cast<double>(tokens_.size());
  size_t done = 0;
  for (bool goes_on = true; goes_on && done < tokens_.size();) {
    const auto to_end_of_block = static_cast<size_t>(kBlock - session_.position() % kBlock);
    const size_t count = std::min(to_end_of_block, tokens_.size() - done);
    if (count < to_end_of_block && !ended_) break;
    session_.prefill(std::span(tokens_).subspan(done, count));
    done += count;
    const double bytes = bytes_per_token * static_cast<double>(count);
    bytes_ -= bytes;
    if (after_block) goes_on = after_block(bytes);
  }
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<ptrdiff_t>(done));
}

}  // namespace raffia::internal::runtime
