// raffia generate: a language model continues a prompt or a saved state.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine.h"
#include "bench/table.h"
#include "cli/shared/command.h"
#include "cli/shared/conversation.h"
#include "cli/shared/flags.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/prompt.h"
#include "cli/shared/sampling_flags.h"
#include "core/message.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/session.h"

namespace raffia::internal::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSnapshotEvery = Session::kChunk;  // of a conversation

struct Flags {
  ModelToRun model;
  std::filesystem::path state_in, state_out;
  PromptFlags prompt;
  SamplingFlags sampling;
  int64_t tokens = 256;
  std::vector<std::string> stop;
  bool echo = false, logprobs = false, json = false, interactive = false;
  int64_t snapshot_every = kSnapshotEvery;
  int threads = 0;
};

struct Outcome {
  PromptReport prompt;
  Generated written;
  double seconds = 0;  // spent generating

  double tokens_per_second() const { return per_second(written.ids.size(), seconds); }

  static double per_second(size_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

std::string_view name_of(Generated::Reason reason) {
  switch (reason) {
    case Generated::Reason::length:
      return "length";
    case Generated::Reason::stop:
      return "stop";
    case Generated::Reason::end:
      return "end";
    case Generated::Reason::room:
      return "room";
  }
  return "";
}

void print_json(const Outcome& outcome, const Session& session, bool interrupted) {
  const Json json = {{"text", outcome.written.text},
                     {"ids", outcome.written.ids},
                     {"log_probabilities", outcome.written.log_probabilities},
                     {"reason", interrupted ? "interrupted" : name_of(outcome.written.reason)},
                     {"prompt_tokens", outcome.prompt.tokens},
                     {"position", session.position()},
                     {"prefill_seconds", outcome.prompt.seconds},
                     {"decode_seconds", outcome.seconds},
                     {"tokens_per_second", outcome.tokens_per_second()},
                     {"state_bytes", session.state_bytes()},
                     {"peak_rss_bytes", bench::peak_rss()},
                     {"fingerprint", fingerprint_text(session.model().fingerprint())}};
  // Where "text" is not UTF-8, "ids" is complete.
  std::cout << json_text(json, 2) << '\n';
}

// One line per token, with its text as a JSON string.
void print_log_probabilities(const Generated& written, const Tokenizer& tokenizer) {
  for (size_t i = 0; i < written.ids.size(); ++i) {
    const std::string text = tokenizer.decode(std::span(written.ids).subspan(i, 1));
    say("{:>6} {:>10.4f} {}", written.ids[i], written.log_probabilities[i], json_text(text));
  }
}

void print_report(const Outcome& outcome, const Session& session) {
  const auto part = [](std::string_view verb, size_t tokens, double seconds) {
    return fmt::format("{} {} in {} ({:.0f} tokens/s)", counted(tokens, "token"), verb, bench::human_seconds(seconds),
                       Outcome::per_second(tokens, seconds));
  };
  say("{}, {}; state {} bytes", part("read", static_cast<size_t>(outcome.prompt.tokens), outcome.prompt.seconds),
      part("written", outcome.written.ids.size(), outcome.seconds), grouped(session.state_bytes()));
}

Session make_session(const Flags& flags, const std::shared_ptr<const Model>& model, SessionOptions& options) {
  if (flags.state_in.empty()) {
    options.sampling = flags.sampling.over({});
    return Session(model, options);
  }
  Session session = Session::restore(model, flags.state_in, options);
  const SamplingOptions sampling = flags.sampling.over(session.sampling());
  if (sampling != session.sampling()) session.set_sampling(sampling);
  return session;
}

void continue_text(const Flags& flags, Session& session, const Interrupts& interrupts) {
  Outcome outcome;
  // A state needs no prompt; only a new session waits for one on stdin.
  if (flags.prompt.given() || flags.state_in.empty() || session.position() == 0) {
    outcome.prompt = read_prompt(session, flags.prompt, interrupts, [&flags](std::string_view bytes) {
      if (flags.echo) std::cout << bytes << std::flush;
    });
  }
  if (outcome.prompt.whole) {
    const auto start = Clock::now();
    outcome.written = generate(session, {.tokens = flags.tokens, .stop = flags.stop}, [&](std::string_view text) {
      if (!flags.json) std::cout << text << std::flush;
      return std::cout && interrupts.signal() == 0;
    });
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  }
  const bool interrupted = interrupts.signal() != 0;
  if (!flags.state_out.empty()) session.save(flags.state_out);
  if (flags.json) {
    print_json(outcome, session, interrupted);
    return;
  }
  if (isatty(STDOUT_FILENO) == 1) std::cout << '\n' << std::flush;
  if (outcome.written.reason == Generated::Reason::room) {
    say("Generation stopped: the model has only {}.", counted(session.model().config().max_length, "position"));
  }
  if (flags.logprobs) print_log_probabilities(outcome.written, session.model().tokenizer());
  print_report(outcome, session);
}

void run(const Flags& flags) {
  if (!flags.state_out.empty()) {
    require_place_for_state("--state-out", flags.state_out, flags.model.directory, flags.prompt.file);
  }
  const std::shared_ptr<const Model> model = load_model(flags.model, {Task::lm});
  SessionOptions options{.run = {.threads = flags.threads}, .snapshot_every = flags.interactive ? flags.snapshot_every : 0};
  Session session = make_session(flags, model, options);
  Interrupts interrupts;
  if (flags.interactive) {
    if (flags.prompt.given() && !read_prompt(session, flags.prompt, interrupts).whole) {
      say("The prompt was not read completely: the conversation starts after {}.", counted(session.position(), "token"));
    }
    interrupts.forget();
    GenerateOptions generate_options{.tokens = flags.tokens, .stop = flags.stop};
    if (generate_options.stop.empty()) generate_options.stop = {"\n"};
    converse(session, model, generate_options, options, interrupts);
    if (!flags.state_out.empty()) session.save(flags.state_out);
  } else {
    continue_text(flags, session, interrupts);
  }
  std::cout.flush();
  model->require_unchanged();
  if (const int signal = interrupts.signal(); signal != 0) {
    throw Interrupted(signal, fmt::format("stopped after {}{}", counted(session.position(), "token"),
                                          flags.state_out.empty() ? "" : "; the state was saved"));
  }
}

}  // namespace

Run add_generate(CommandLine& command) {
  const auto flags = std::make_shared<Flags>();
  add_model(command, flags->model);
  add_prompt_flags(command, flags->prompt);
  add_positive(command, "--tokens", flags->tokens, "Maximum number of tokens to generate; with --interactive: per answer");
  command
      .add_repeated(
          "--stop",
          [flags](const std::string& text) {
            if (text.empty()) throw FlagError("--stop", "is empty, expected the text to stop at");
            flags->stop.push_back(text);
          },
          "Stop when this text is generated (it is not printed); may be repeated")
      .type_name("TEXT");
  add_sampling_flags(command, flags->sampling);
  command
      .add("--state-in", flags->state_in,
           "Continue from the state in this file; its sampling options apply unless flags change them")
      .type_name("FILE")
      .file_name();
  command.add("--state-out", flags->state_out, "Save the state at the end, also after Ctrl-C").type_name("FILE").file_name();
  const Flag json = command.add_switch("--json", flags->json, "Print text, ids, log probabilities and figures as JSON");
  const Flag echo = command.add_switch("--echo", flags->echo, "Also print the prompt").excludes(json);
  const Flag logprobs =
      command.add_switch("--logprobs", flags->logprobs, "Print each token and its log probability on stderr").excludes(json);
  const Flag interactive =
      command.add_switch("--interactive", flags->interactive, "Read lines and answer each; /help lists the commands")
          .excludes(json)
          .excludes(echo)
          .excludes(logprobs);
  add_positive(command, "--snapshot-every", flags->snapshot_every,
               "With --interactive: tokens between snapshots for /back, of which the last 8 are kept")
      .needs(interactive);
  add_threads(command, flags->threads);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
