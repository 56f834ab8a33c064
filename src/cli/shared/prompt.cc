#include "cli/shared/prompt.h"

#include <fmt/format.h>

#include <chrono>
#include <span>

#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/formats/text.h"
#include "runtime/prompt.h"

namespace raffia::internal::cli {
namespace {

using Clock = Progress::Clock;

constexpr size_t kBytesAtOnce = size_t{1} << 16;

// Passes text on to a session until a signal comes, with a bar.
class Reader {
 public:
  Reader(Session& session, const Interrupts& interrupts, std::optional<uint64_t> bytes)
      : session_(session),
        interrupts_(interrupts),
        first_(session.position()),
        unknown_(session.model().tokenizer()),
        prompt_(session, [this](std::string_view text, std::span<const int32_t> ids) { unknown_.add(text, ids); }),
        progress_(static_cast<double>(bytes.value_or(0)), kQuietAtFirst) {
    progress_.begin("reading the prompt");
  }

  bool stopped() const { return interrupts_.signal() != 0; }

  void add(std::string_view text) {
    prompt_.add(text);
    read();
  }

  void finish() {
    if (stopped()) return;
    prompt_.end();
    read();
  }

  int64_t tokens() const { return session_.position() - first_; }
  std::string unknown() const { return unknown_.summary(); }
  double seconds() const { return std::chrono::duration<double>(busy_).count(); }  // without waiting for a pipe

 private:
  void read() {
    if (stopped()) return;
    const auto start = Clock::now();
    prompt_.read([this](double bytes) {
      progress_.describe("reading the prompt, " + counted(tokens(), "token"));
      progress_.advance(bytes);
      return !stopped();
    });
    busy_ += Clock::now() - start;
  }

  Session& session_;
  const Interrupts& interrupts_;
  const int64_t first_;
  UnknownTokens unknown_;
  runtime::Prompt prompt_;
  Progress progress_;
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
  PromptSource source(flags);
  PromptReport report;
  std::string unknown;
  {
    Reader reader(session, interrupts, source.size());
    std::string bytes;
    for (bool more = true; more && !reader.stopped();) {
      more = source.read(bytes);
      if (on_text) on_text(bytes);
      reader.add(bytes);
    }
    reader.finish();
    report = {.tokens = reader.tokens(), .seconds = reader.seconds(), .whole = !reader.stopped()};
    unknown = reader.unknown();
  }
  // Once the bar is gone.
  if (!unknown.empty()) say("{}", unknown);
  return report;
}

}  // namespace raffia::internal::cli
