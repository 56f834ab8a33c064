// raffia state info|save|restore: sessions as files.
#include "raffia/state.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/table.h"
#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/interrupt.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/prompt.h"
#include "cli/shared/sampling_flags.h"
#include "io/formats/file.h"
#include "io/formats/image.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "raffia/memory.h"
#include "raffia/session.h"
#include "raffia/window_state.h"

namespace raffia::internal::cli {
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

void print(const Json& json, bool as_json) {
  if (as_json) {
    std::cout << json_text(json, 2) << '\n';
    return;
  }
  for (const auto& [name, value] : json.items()) {
    if (!value.is_structured()) {
      std::cout << fmt::format("{:<12} {}\n", name,
                               value.is_number_unsigned() ? grouped(value.get<uint64_t>()) : bench::plain(value));
    } else if (value.is_object()) {
      std::vector<std::string> parts;
      for (const auto& [field, number] : value.items()) parts.push_back(fmt::format("{} {}", field, bench::plain(number)));
      std::cout << fmt::format("{:<12} {}\n", name, fmt::join(parts, ", "));
    } else {
      for (size_t i = 0; i < value.size(); ++i)
        std::cout << fmt::format("{:<12} {}\n", i == 0 ? name : "", bench::plain(value[i]));
    }
  }
}

// Position and sampling of a session.
Json session_facts(const std::filesystem::path& file) {
  const SessionFileInfo info = read_session_info(file);
  return {{"file", file.string()},
          {"image", kSessionImage.noun},
          {"bytes", info.bytes},
          {"fingerprint", fingerprint_text(info.fingerprint)},
          {"position", info.position},
          {"draws", info.draws},
          {"sampling", to_json(info.sampling)},
          {"vocabulary", info.vocabulary},
          {"memories", info.memories}};
}

// A file written by State::save.
Json state_facts(const std::filesystem::path& file) {
  const StateShape shape = State::load(file).shape();
  return {{"file", file.string()},       {"image", kStateImage.noun}, {"bytes", std::filesystem::file_size(file)},
          {"batch", shape.batch},        {"heads", shape.heads},      {"features", shape.features},
          {"value_dim", shape.value_dim}};
}

// A file written by WindowState::save.
Json window_state_facts(const std::filesystem::path& file) {
  const WindowState state = WindowState::load(file);
  const WindowStateShape& shape = state.shape();
  std::vector<int64_t> tokens;
  for (int64_t b = 0; b < shape.batch; ++b) tokens.push_back(state.tokens(b));
  return {{"file", file.string()},
          {"image", kWindowStateImage.noun},
          {"bytes", std::filesystem::file_size(file)},
          {"kind", name_of(shape.kind)},
          {"batch", shape.batch},
          {"tokens", tokens},
          {"query_heads", shape.query_heads},
          {"heads", shape.heads},
          {"dim", shape.dim},
          {"far_dim", shape.far_dim},
          {"value_dim", shape.value_dim},
          {"window", shape.window},
          {"summaries", shape.summaries},
          {"proposals", shape.proposals},
          {"features", shape.features},
          {"chunk", shape.chunk}};
}

// A file of a KeyCache, written by Memory::save.
Json key_cache_facts(const std::filesystem::path& file) {
  const Memory memory = Memory::load(file);
  const KeyCache& cache = *memory.key_cache();
  const KeyCacheShape& shape = cache.shape();
  std::vector<int64_t> tokens, rows;
  for (int64_t b = 0; b < shape.batch; ++b) {
    tokens.push_back(cache.tokens(b));
    rows.push_back(cache.rows(b));
  }
  return {{"file", file.string()},
          {"image", kKeyCacheImage.noun},
          {"bytes", std::filesystem::file_size(file)},
          {"batch", shape.batch},
          {"tokens", tokens},
          {"rows", rows},
          {"heads", shape.heads},
          {"dim", shape.dim},
          {"value_dim", shape.value_dim}};
}

// The kind of file, by its first bytes. Other files are reported as invalid sessions.
Json facts_of(const std::filesystem::path& file) {
  std::string magic(kStateImage.magic.size(), '\0');
  File opened = File::open_to_read(file);  // not a pipe, which would block
  magic.resize(opened.read(std::as_writable_bytes(std::span(magic))));
  if (magic == kStateImage.magic) return state_facts(file);
  if (magic == kWindowStateImage.magic) return window_state_facts(file);
  if (magic == kKeyCacheImage.magic) return key_cache_facts(file);
  return session_facts(file);
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
  Json facts = session_facts(flags.file);
  facts.update({{"prompt_tokens", prompt.tokens}, {"prefill_seconds", prompt.seconds}});
  print(facts, flags.json);
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
  Json facts = session_facts(flags.file);
  facts.update({{"state_bytes", session.state_bytes()}});
  print(facts, flags.json);
}

Flag add_file(CommandLine& command, std::filesystem::path& file, const std::string& description) {
  return command.add("file", file, description).type_name("FILE").required();
}

}  // namespace

Run add_state_info(CommandLine& command) {
  struct InfoFlags {
    std::filesystem::path file;
    bool json = false;
  };
  const auto flags = std::make_shared<InfoFlags>();
  add_file(command, flags->file, "State file");
  command.add_switch("--json", flags->json, "Print JSON");
  return [flags] { print(facts_of(flags->file), flags->json); };
}

Run add_state_save(CommandLine& command) {
  const auto flags = std::make_shared<SaveFlags>();
  add_model(command, flags->model);
  add_file(command, flags->file, "State file to write");
  add_prompt_flags(command, flags->prompt);
  add_sampling_flags(command, flags->sampling);
  command.add_switch("--json", flags->json, "Print JSON");
  add_threads(command, flags->threads);
  return [flags] { save(*flags); };
}

Run add_state_restore(CommandLine& command) {
  const auto flags = std::make_shared<RestoreFlags>();
  add_model(command, flags->model);
  add_file(command, flags->file, "State file");
  command.add_switch("--check", flags->check, "Save it again and compare the bytes, and generate one token");
  command.add_switch("--json", flags->json, "Print JSON");
  add_threads(command, flags->threads);
  return [flags] { restore(*flags); };
}

}  // namespace raffia::internal::cli
