// A text of any length, read by a session as it arrives, in constant memory.
#ifndef RAFFIA_RUNTIME_PROMPT_H_
#define RAFFIA_RUNTIME_PROMPT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/session.h"
#include "runtime/token_stream.h"

namespace raffia::internal::runtime {

// The session reads blocks that end at the same positions however the text arrives: the bits of the result depend on them. They
// are those of Session::prefill(text).
class Prompt {
 public:
  using OnEncoded = std::function<void(std::string_view text, std::span<const int32_t> ids)>;

  // on_encoded is called with each part of the text as it is tokenised.
  explicit Prompt(Session& session, OnEncoded on_encoded = {});

  void add(std::string_view text);
  void end();  // there is no more text

  // Reads the blocks that are complete; after end(), all tokens. `after_block` is called with the number of bytes that a block
  // had, and returns false to stop.
  void read(const std::function<bool(double bytes)>& after_block = {});

 private:
  static constexpr int64_t kBlock = 4 * Session::kChunk;

  void keep(std::span<const int32_t> ids, size_t bytes);

  Session& session_;
  TokenStream stream_;
  std::vector<int32_t> tokens_;  // not read yet
  double bytes_ = 0;             // of their text
  bool ended_ = false;
};

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_PROMPT_H_
