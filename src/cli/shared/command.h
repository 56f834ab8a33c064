// A command adds its flags to a command line and returns the function that runs it after parsing.
#ifndef RAFFIA_CLI_SHARED_COMMAND_H_
#define RAFFIA_CLI_SHARED_COMMAND_H_

#include <functional>
#include <stdexcept>
#include <string>

#include "bench/format.h"
#include "cli/shared/command_flags.h"

namespace raffia::internal::cli {

using Run = std::function<void()>;

using bench::Json;  // of --json

// raffia.
Run add_approx(CommandLine& command);
Run add_bench_attention(CommandLine& command);
Run add_bench_decode(CommandLine& command);
Run add_bench_isa(CommandLine& command);
Run add_bench_prefill(CommandLine& command);
Run add_bench_session(CommandLine& command);
Run add_bench_step(CommandLine& command);
Run add_classify(CommandLine& command);
Run add_completion(CommandLine& command);
Run add_describe(CommandLine& command);
Run add_generate(CommandLine& command);
Run add_import_hf(CommandLine& command);
Run add_import_llama2c(CommandLine& command);
Run add_info(CommandLine& command);
Run add_man(CommandLine& command);
Run add_quantize(CommandLine& command);
Run add_state_info(CommandLine& command);
Run add_state_restore(CommandLine& command);
Run add_state_save(CommandLine& command);
Run add_translate(CommandLine& command);

// raffia-train.
Run add_bench_train(CommandLine& command);
Run add_convert(CommandLine& command);
Run add_eval(CommandLine& command);
Run add_train_classify(CommandLine& command);
Run add_train_image(CommandLine& command);
Run add_train_lm(CommandLine& command);
Run add_train_recall(CommandLine& command);
Run add_train_translate(CommandLine& command);

// Flags that are valid one by one but contradict each other: exit code 2, like any other bad usage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Interrupted by a signal, after everything was saved: exit code 128 plus the signal number, as in shells.
class Interrupted : public std::runtime_error {
 public:
  Interrupted(int by_signal, const std::string& message) : std::runtime_error(message), signal(by_signal) {}
  const int signal;
};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_COMMAND_H_
