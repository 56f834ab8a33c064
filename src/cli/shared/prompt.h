// Reads a prompt of any length into a session, from a flag, a file or a pipe, in constant memory.
#ifndef RAFFIA_CLI_SHARED_PROMPT_H_
#define RAFFIA_CLI_SHARED_PROMPT_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/shared/command.h"
#include "cli/shared/input.h"
#include "cli/shared/interrupt.h"
#include "raffia/session.h"

namespace raffia::internal::cli {

struct PromptFlags {
  std::optional<std::string> text;
  std::filesystem::path file;  // "-": stdin; empty: not given

  bool given() const { return text.has_value() || !file.empty(); }
};
void add_prompt_flags(CommandLine& command, PromptFlags& flags);

struct PromptReport {
  int64_t tokens = 0;
  double seconds = 0;
  bool whole = true;  // false: a signal came before the end
};

// Reads the prompt into the session as Session::prefill does, from stdin if no flag gives one.
// `on_text` is called with the bytes as they are read. The result does not depend on how a pipe splits them. A bar is shown on
// stderr if it takes long, and a message if parts of it are not in the vocabulary.
PromptReport read_prompt(Session& session, const PromptFlags& flags, const Interrupts& interrupts,
                         const std::function<void(std::string_view bytes)>& on_text = {});

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_PROMPT_H_
