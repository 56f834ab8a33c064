#include "cli/shared/prompt.h"

#include <fmt/format.h>

#include <chrono>
#include <span>
#include <vector>

#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "cli/shared/token_stream.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/formats/text.h"

namespace raffia::cli {
namespace {

using Clock = Progress::Clock;

constexpr size_t kBytesAtOnce = size_t{1} << 16;

// Feeds a session in blocks that end at the same positions however the text arrives: the bits of the result depend on them.
class Reader {
 public:
  Reader(Session& session, const Interrupts& interrupts, std::optional<uint64_t> bytes)
      : session_(session),
        interrupts_(interrupts),
        first_(session.position()),
        stream_(session.model().tokenizer(), session.position() == 0),
        unknown_(session.model().tokenizer()),
        progress_(static_cast<double>(bytes.value_or(0)), kQuietAtFirst) {
    stream_.on_encoded = [this](std::string_view text, std::span<const int32_t> ids) { unknown_.add(text, ids); };
    progress_.begin("reading the prompt");
  }

  bool stopped() const { return interrupts_.signal() != 0; }

  void add(std::span<const int32_t> ids, size_t bytes = 0) {
    const auto start = Clock::now();
    pending_.insert(pending_.end(), ids.begin(), ids.end());
    const double bytes_per_token = static_cast<double>(bytes) / static_cast<double>(pending_.size());
    size_t read = 0;
    for (size_t block = room(); pending_.size() - read >= block && !stopped(); block = room()) {
      session_.prefill(std::span(pending_).subspan(read, block));
      read += block;
      progress_.describe("reading the prompt, " + counted(tokens(), "token"));
      progress_.advance(bytes_per_token * static_cast<double>(block));
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(read));
    busy_ += Clock::now() - start;
  }

  void add_text(std::string_view text) {
    const size_t before = stream_.held() + text.size();
    const std::vector<int32_t> ids = stream_.push(text);
    add(ids, before - stream_.held());
  }

  void finish() {
    const size_t bytes = stream_.held();
    add(stream_.finish(), bytes);
    if (stopped() || pending_.empty()) return;
    const auto start = Clock::now();
    session_.prefill(pending_);
    pending_.clear();
    busy_ += Clock::now() - start;
  }

  int64_t tokens() const { return session_.position() - first_; }
  std::string unknown() const { return unknown_.summary(); }
  double seconds() const { return std::chrono::duration<double>(busy_).count(); }  // without waiting for a pipe

 private:
  static constexpr int64_t kBlock = 4 * Session::kChunk;

  size_t room() const { return static_cast<size_t>(kBlock - session_.position() % kBlock); }  // tokens to the end of the block

  Session& session_;
  const Interrupts& interrupts_;
  const int64_t first_;
  TokenStream stream_;
  UnknownTokens unknown_;
  Progress progress_;
  std::vector<int32_t> pending_;
  Clock::duration busy_{};
};

// The bytes of a prompt, wherever they are.
class PromptSource {
 public:
  explicit PromptSource(const PromptFlags& flags) {
    if (flags.text) {
      text_ = *flags.text;
    } else if (flags.file.empty()) {
      input_.emplace();
    } else {
      input_.emplace(flags.file);
    }
    if (input_ && input_->is_terminal()) say("End the prompt with Ctrl-D at the start of a line.");
  }

  std::optional<uint64_t> size() const { return input_ ? input_->size() : text_.size(); }

  bool read(std::string& bytes) {
    bytes.clear();
    if (input_) return input_->read(bytes, kBytesAtOnce);
    bytes = text_.substr(given_, kBytesAtOnce);
    given_ += bytes.size();
    return given_ < text_.size();
  }

 private:
  std::string_view text_;
  size_t given_ = 0;
  std::optional<Input> input_;
};

}  // namespace

void add_prompt_flags(CommandLine& command, PromptFlags& flags) {
  const Flag prompt = command
                          .add_parsed(
                              "--prompt", [&flags](const std::string& text) { flags.text = text; },
                              "Text to continue (default: read from stdin, unless there is --state-in)")
                          .type_name("TEXT");
  command.add("--prompt-file", flags.file, "Read the prompt from a file of any length; -: stdin")
      .type_name("FILE")
      .file_name()
      .excludes(prompt);
}

PromptReport read_prompt(Session& session, const PromptFlags& flags, const Interrupts& interrupts,
                         const std::function<void(std::string_view bytes)>& on_text) {
  const Tokenizer& tokenizer = session.model().tokenizer();
  const bool fresh = session.position() == 0;
  PromptSource source(flags);
  PromptReport report;
  std::string unknown;
  {
    Reader reader(session, interrupts, source.size());
    if (fresh && tokenizer.begins_texts()) reader.add(std::vector<int32_t>{tokenizer.begin()});
    std::string bytes;
    for (bool more = true; more && !reader.stopped();) {
      more = source.read(bytes);
      if (on_text) on_text(bytes);
      reader.add_text(bytes);
    }
    if (!reader.stopped()) reader.finish();
    // A prompt may have bytes and yet no token.
    if (!reader.stopped() && session.position() == 0) {
      reader.add(opening_of(tokenizer));
      reader.finish();
    }
    report = {.tokens = reader.tokens(), .seconds = reader.seconds(), .whole = !reader.stopped()};
    unknown = reader.unknown();
  }
  // Once the bar is gone.
  if (!unknown.empty()) say("{}", unknown);
  return report;
}

}  // namespace raffia::cli
