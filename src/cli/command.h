// A command registers its flags on a CLI11 app and returns the function that runs it after parsing.
#ifndef RAFFIA_CLI_COMMAND_H_
#define RAFFIA_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

namespace raffia::cli {

using Run = std::function<void()>;

Run add_approx(CLI::App& app);
Run add_bench_attention(CLI::App& app);
Run add_bench_decode(CLI::App& app);
Run add_bench_prefill(CLI::App& app);
Run add_bench_session(CLI::App& app);
Run add_bench_step(CLI::App& app);
Run add_classify(CLI::App& app);
Run add_completion(CLI::App& app);
Run add_describe(CLI::App& app);
Run add_generate(CLI::App& app);
Run add_import_hf(CLI::App& app);
Run add_import_llama2c(CLI::App& app);
Run add_info(CLI::App& app);
Run add_man(CLI::App& app);
Run add_quantize(CLI::App& app);
Run add_state_info(CLI::App& app);
Run add_state_restore(CLI::App& app);
Run add_state_save(CLI::App& app);
Run add_translate(CLI::App& app);

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

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_COMMAND_H_
