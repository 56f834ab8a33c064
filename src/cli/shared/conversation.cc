#include "cli/shared/conversation.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "cli/shared/flags.h"
#include "cli/shared/line_editor.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/sampling_flags.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "runtime/token_stream.h"

namespace raffia::internal::cli {
namespace {

constexpr std::string_view kHelp =
    "Type a line, and the model continues it. Ctrl-C stops the answer, Ctrl-D or /quit quits.\n"
    "A line that ends in \\ is left open: the model continues within it. A line that begins with // is text that begins with "
    "/.\n"
    "  /back N          go back by N tokens; without N, by the last line and its answer\n"
    "  /save FILE       save the session\n"
    "  /load FILE       continue a saved session\n"
    "  /seed N          set the seed of the random choices\n"
    "  /temperature X   set the temperature; 0: always the most likely token\n"
    "  /info            show position, state size and sampling\n"
    "  /help            this text\n"
    "  /quit, /exit     leave\n";

class Conversation {
 public:
  Conversation(Session& session, std::shared_ptr<const Model> model, const GenerateOptions& options,
               const SessionOptions& session_options, Interrupts& interrupts)
      : session_(session),
        model_(std::move(model)),
        options_(options),
        session_options_(session_options),
        interrupts_(interrupts),
        line_end_(runtime::line_end_of(model_->tokenizer()).empty() ? "" : "\n") {}

  void run() {
    LineEditor editor("> ", interrupts_);
    std::string line;
    while (std::cout && !interrupts_.must_end() && !is_over_) {
      const LineEditor::Came came = editor.next(line);
      if (came == LineEditor::Came::end) return;
      if (came == LineEditor::Came::signal && !editor.is_terminal()) return;
      if (came == LineEditor::Came::line) heed(line);
      if (interrupts_.signal() == SIGINT) interrupts_.forget();
    }
  }

 private:
  void heed(const std::string& line) {
    try {
      if (line.starts_with('/') && !line.starts_with("//")) {
        obey(line);
      } else {
        answer(std::string_view(line).substr(line.starts_with("//") ? 1 : 0));
      }
    } catch (const FlagError& error) {
      say("{}", one_line(error.what()));
    } catch (const Error& error) {  // a wrong file or number does not end the conversation
      say("{}", one_line(error.what()));
    }
  }

  void answer(std::string_view line) {
    const Tokenizer& tokenizer = model_->tokenizer();
    const int64_t before = session_.position();
    const bool unfinished = line.ends_with('\\');
    if (unfinished) line.remove_suffix(1);
    const std::string text = fmt::format("{}{}{}", within_line_ ? line_end_ : "", line, unfinished ? "" : line_end_);
    UnknownTokens unknown(tokenizer);
    unknown.add(text, tokenizer.encode_rest(text));
    // Recorded before the answer begins, so that /back also undoes an answer that failed.
    const auto remember = [&] { last_ = {.tokens = session_.position() - before, .within_line = within_line_}; };
    session_.prefill(text);
    remember();
    if (const std::string summary = unknown.summary(); !summary.empty()) say("{}", summary);
    const Generated written = generate(session_, options_, [this](std::string_view piece) {
      std::cout << piece << std::flush;
      return std::cout && interrupts_.signal() == 0;
    });
    std::cout << '\n' << std::flush;
    remember();
    within_line_ = !tokenizer.decode(written.ids).ends_with('\n');
  }

  void obey(std::string_view line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string command(line.substr(0, space));
    const std::string_view rest = line.substr(space);
    const std::string argument(rest.substr(std::min(rest.find_first_not_of(' '), rest.size())));
    const auto need = [&](const char* what) {
      if (argument.empty()) throw Error(fmt::format("{} needs {}", command, what));
    };
    if (command == "/help") {
      write_message(kHelp);
    } else if (command == "/quit" || command == "/exit") {
      is_over_ = true;
    } else if (command == "/info") {
      inform();
    } else if (command == "/save") {
      need("the name of a file");
      session_.save(argument);
      say("{}", one_line(fmt::format("{}: {}", argument, counted(session_.position(), "token"))));
    } else if (command == "/load") {
      need("the name of a file");
      session_ = Session::restore(model_, argument, session_options_);
      within_line_ = false;
      last_ = {};
      inform();
    } else if (command == "/back") {
      const int64_t tokens = argument.empty() ? last_.tokens : parse_positive(command, argument);
      if (tokens == 0) throw Error("/back: there is no earlier line; /back N goes back by N tokens");
      session_.rollback(tokens);
      within_line_ = argument.empty() && last_.within_line;
      last_ = {};
      say("went back {}; position {}", counted(tokens, "token"), grouped(static_cast<uint64_t>(session_.position())));
    } else if (command == "/seed") {
      need("a number");
      set(&SamplingOptions::seed, parse_seed(command, argument));
    } else if (command == "/temperature") {
      need("a number");
      set(&SamplingOptions::temperature, parse_temperature(command, argument));
    } else {
      throw Error(fmt::format("{} is not a command; /help lists the commands", command));
    }
  }

  template <typename Field>
  void set(Field SamplingOptions::*field, Field value) {
    SamplingOptions sampling = session_.sampling();
    sampling.*field = value;
    session_.set_sampling(sampling);
  }

  void inform() const {
    const SamplingOptions& sampling = session_.sampling();
    say("{} read, /back can go back by {}; state {} bytes; temperature {}, seed {}; model {}",
        counted(session_.position(), "token"), session_.rollback_limit(), grouped(session_.state_bytes()), sampling.temperature,
        sampling.seed, fingerprint_text(model_->fingerprint()));
  }

  struct Exchange {
    int64_t tokens = 0;        // of a line and its answer
    bool within_line = false;  // before it
  };

  Session& session_;
  std::shared_ptr<const Model> model_;
  const GenerateOptions options_;
  const SessionOptions session_options_;
  Interrupts& interrupts_;
  const std::string line_end_;  // empty if the vocabulary has none
  bool within_line_ = false;    // the last answer did not end its line
  bool is_over_ = false;        // /quit
  Exchange last_;
};

}  // namespace

void converse(Session& session, std::shared_ptr<const Model> model, const GenerateOptions& options,
              const SessionOptions& session_options, Interrupts& interrupts) {
  Conversation(session, std::move(model), options, session_options, interrupts).run();
}

}  // namespace raffia::internal::cli
