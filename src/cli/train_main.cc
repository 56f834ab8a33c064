// The raffia-train command: everything that needs LibTorch. `raffia train`, `raffia convert`, `raffia eval` and
// `raffia bench train` run it, with the words that they were given: its commands have the same names.
#include <malloc.h>

#include <cstdlib>

#include "cli/shared/command.h"
#include "cli/shared/program.h"
#include "cli/shared/waiting_threads.h"

namespace raffia::internal::cli {
namespace {

constexpr Command kCommands[] = {
    {"train", "lm", "Train a language model on a text", "raffia train lm --data book.txt --out book-model", add_train_lm},
    {"train", "translate", "Train a translator on two files aligned by line",
     "raffia train translate --data corpus --source en --target de --out en-de", add_train_translate},
    {"train", "classify", "Train a classifier of texts or pairs of texts, from lines of label TAB text",
     "raffia train classify --data reviews.tsv --out reviews-model", add_train_classify},
    {"train", "image", "Train a classifier of images, from a directory of MNIST or CIFAR-10 files",
     "raffia train image --data fashion-mnist --out fashion-model", add_train_image},
    {"train", "recall", "Train on associative recall: how much an attention remembers, and over which distance",
     "raffia train recall --estimator hybrid --pairs 32 --distances 16,64,256 --out recall-model", add_train_recall},
    {nullptr, "convert", "Replace the softmax attention of a model by another attention",
     "raffia convert imported --to rfa_gate converted --data stories.txt", add_convert},
    {nullptr, "eval", "Evaluate a trained model", "raffia eval book-model --data other.txt --segments 256,1024 --json", add_eval},
    {"bench", "train", "Time training: an attention layer or a whole model, compared with plain torch",
     "raffia bench train --what layer --lengths 512,2048 --json", add_bench_train},
    {nullptr, "describe", "Print all commands and flags as JSON", "raffia-train describe", add_describe},
};

constexpr Group kGroups[] = {
    {"train", "Train a model", "raffia train lm --data book.txt --out book-model"},
    {"bench", "Measure speed on this machine", "raffia bench train --what layer --lengths 512,2048"},
};

// Under the name that users type.
constexpr Program kProgram{.name = "raffia",
                           .description = "Train and evaluate models with Random Feature Attention",
                           .example = "raffia train lm --data book.txt --out book-model",
                           .groups = kGroups,
                           .commands = kCommands};

void before_libraries(int, char** arguments, char** environment) { restart_with_sleeping_threads(arguments, environment); }
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeforeLibraries)(int, char**, char**) = before_libraries;

// Memory that is freed stays with this process. By default the pages of every large tensor go back to the system, which clears
// them for the next tensor: up to a fifth of a training step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return;  // somebody knows better
  }
  constexpr int kGrowth = 64 << 20;  // bytes at a time
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  ::mallopt(M_TOP_PAD, kGrowth);
#endif
}

}  // namespace
}  // namespace raffia::internal::cli

int main(int argc, char** argv) {
  raffia::internal::cli::keep_freed_memory();
  return raffia::internal::cli::run_program(raffia::internal::cli::kProgram, argc, argv);
}
