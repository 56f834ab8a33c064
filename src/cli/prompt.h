// What a session reads before it writes: a prompt of any length, from a flag, a file or a pipe, in memory of constant size.
#ifndef RAFFIA_CLI_PROMPT_H_
#define RAFFIA_CLI_PROMPT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "raffia/session.h"

namespace raffia::cli {

struct PromptFlags {
  std::optional<std::string> text;
  std::filesystem::path file;  // "-": stdin; empty: not given

  bool given() const { return text.has_value() || !file.empty(); }
};
void add_prompt_flags(CLI::App& app, PromptFlags& flags);

struct PromptReport {
  int64_t tokens = 0;
  double seconds = 0;
  bool whole = true;  // false: a signal came before the end
};

// Reads the prompt into the session, stdin if no flag gives one; a session that has read nothing yet gets what texts begin with.
// `on_text` sees the bytes as they are read. What the session remembers does not depend on how a pipe cuts them. A bar appears on
// stderr if it takes long, and a line where the vocabulary does not know all of it.
PromptReport read_prompt(Session& session, const PromptFlags& flags, const Interrupts& interrupts,
                         const std::function<void(std::string_view bytes)>& on_text = {});

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_PROMPT_H_
