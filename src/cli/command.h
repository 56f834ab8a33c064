// A command registers its flags on the CLI11 app it is given and returns what runs it once they are parsed.
#ifndef RAFFIA_CLI_COMMAND_H_
#define RAFFIA_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace raffia::cli {

using Run = std::function<void()>;

Run add_approx(CLI::App& app);
Run add_bench_attention(CLI::App& app);
Run add_bench_decode(CLI::App& app);
Run add_import_hf(CLI::App& app);
Run add_import_llama2c(CLI::App& app);
Run add_info(CLI::App& app);
Run add_quantize(CLI::App& app);

// Flags that are fine one by one and do not fit together: exit code 2, like any other bad usage.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_COMMAND_H_
