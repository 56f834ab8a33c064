// The raffia-train command: everything that needs LibTorch. `raffia train`, `raffia eval` and `raffia bench train` run it.
#include "cli/program.h"
#include "cli/train_commands.h"

namespace raffia::cli {
namespace {

constexpr Command kCommands[] = {
    {nullptr, "lm", "Train a language model on a text", "raffia train lm --data book.txt --out book-model", add_train_lm},
};

constexpr Program kProgram{.name = "raffia-train",
                           .description = "Train and evaluate models with Random Feature Attention",
                           .example = "raffia train lm --data book.txt --out book-model",
                           .groups = {},
                           .commands = kCommands};

}  // namespace
}  // namespace raffia::cli

int main(int argc, char** argv) { return raffia::cli::run_program(raffia::cli::kProgram, argc, argv); }
