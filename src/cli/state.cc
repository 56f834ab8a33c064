// raffia state info|save|restore: sessions as files.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/model_commands.h"
#include "cli/prompt.h"
#include "cli/sampling_flags.h"
#include "cli/table.h"
#include "io/text.h"
#include "raffia/error.h"
#include "raffia/session.h"

namespace raffia::cli {
namespace {

Json to_json(const SamplingOptions& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"repetition_window", sampling.repetition_window},
          {"seed", sampling.seed}};
}

// Printed by all three commands: the position of a session. `more` follows.
void print(const std::filesystem::path& file, const SessionFileInfo& info, bool as_json, const Json& more = Json::object()) {
  Json json = {{"file", file.string()},         {"bytes", info.bytes},      {"fingerprint", fingerprint_text(info.fingerprint)},
               {"position", info.position},     {"draws", info.draws},      {"sampling", to_json(info.sampling)},
               {"vocabulary", info.vocabulary}, {"memories", info.memories}};
  json.update(more);
  if (as_json) {
    std::cout << json.dump(2) << '\n';
    return;
  }
  for (const auto& [name, value] : json.items()) {
    if (!value.is_structured()) {
      std::cout << fmt::format("{:<12} {}\n", name, value.is_number_unsigned() ? grouped(value.get<uint64_t>()) : plain(value));
    } else if (value.is_object()) {
      std::vector<std::string> parts;
      for (const auto& [field, number] : value.items()) parts.push_back(fmt::format("{} {}", field, plain(number)));
      std::cout << fmt::format("{:<12} {}\n", name, fmt::join(parts, ", "));
    } else {
      for (size_t i = 0; i < value.size(); ++i) std::cout << fmt::format("{:<12} {}\n", i == 0 ? name : "", plain(value[i]));
    }
  }
}

struct SaveFlags {
  ModelToRun model;
  std::filesystem::path file;
  PromptFlags prompt;
  SamplingFlags sampling;
  bool json = false;
  int threads = 0;
};

void save(const SaveFlags& flags) {
  require_place_for_state("FILE", flags.file, flags.model.directory, flags.prompt.file);
  Session session(load_model(flags.model, {Task::lm}), {.sampling = flags.sampling.over({}), .run = {.threads = flags.threads}});
  const Interrupts interrupts;
  const PromptReport prompt = read_prompt(session, flags.prompt, interrupts);
  if (!prompt.whole) {
    throw Interrupted(interrupts.signal(), fmt::format("stopped after {}; nothing was written", counted(prompt.tokens, "token")));
  }
  session.save(flags.file);
  print(flags.file, read_session_info(flags.file), flags.json,
        {{"prompt_tokens", prompt.tokens}, {"prefill_seconds", prompt.seconds}});
}

struct RestoreFlags {
  ModelToRun model;
  std::filesystem::path file;
  bool check = false, json = false;
  int threads = 0;
};

// Saving it again gives the same bytes, and it can be continued.
void check(const Session& session, const std::filesystem::path& file) {
  const std::vector<std::byte> saved = session.to_bytes();
  if (read_file(file) != std::string_view(reinterpret_cast<const char*>(saved.data()), saved.size())) {
    throw FormatError(fmt::format("{}: saving it again gives different bytes", file.string()));
  }
  if (session.position() == 0 || session.room() == 0) return;
  Session fork = session;
  fork.step(fork.likeliest(1).at(0).id);
  for (const float logit : fork.logits()) {
    if (!std::isfinite(logit)) throw FormatError(fmt::format("{}: a logit of the next token is not finite", file.string()));
  }
}

void restore(const RestoreFlags& flags) {
  const Session session = Session::restore(load_model(flags.model, {Task::lm}), flags.file, {.run = {.threads = flags.threads}});
  if (flags.check) check(session, flags.file);
  print(flags.file, read_session_info(flags.file), flags.json, {{"state_bytes", session.state_bytes()}});
}

CLI::Option* add_file(CLI::App& app, std::filesystem::path& file, const std::string& description) {
  return app.add_option("file", file, description)->type_name("FILE")->required();
}

}  // namespace

Run add_state_info(CLI::App& app) {
  struct InfoFlags {
    std::filesystem::path file;
    bool json = false;
  };
  const auto flags = std::make_shared<InfoFlags>();
  add_file(app, flags->file, "State file");
  app.add_flag("--json", flags->json, "Print JSON");
  return [flags] { print(flags->file, read_session_info(flags->file), flags->json); };
}

Run add_state_save(CLI::App& app) {
  const auto flags = std::make_shared<SaveFlags>();
  add_model(app, flags->model);
  add_file(app, flags->file, "State file to write");
  add_prompt_flags(app, flags->prompt);
  add_sampling_flags(app, flags->sampling);
  app.add_flag("--json", flags->json, "Print JSON");
  add_threads(app, flags->threads);
  return [flags] { save(*flags); };
}

Run add_state_restore(CLI::App& app) {
  const auto flags = std::make_shared<RestoreFlags>();
  add_model(app, flags->model);
  add_file(app, flags->file, "State file");
  app.add_flag("--check", flags->check, "Save it again and compare the bytes, and generate one token");
  app.add_flag("--json", flags->json, "Print JSON");
  add_threads(app, flags->threads);
  return [flags] { restore(*flags); };
}

}  // namespace raffia::cli
