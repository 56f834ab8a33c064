// The raffia command. Everything that needs LibTorch is in raffia-train, in the same directory: loading torch costs a second and
// 160 MB.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/shared/app_tree.h"
#include "cli/shared/program.h"
#include "cli/shared/waiting_threads.h"
#include "core/message.h"

namespace raffia::internal::cli {
namespace {

// Marks commands of raffia-train, which main() runs before anything is parsed here.
Run listed_only(CommandLine&) {
  return [] {};
}

constexpr Command kCommands[] = {
    {"bench", "attention", "Time attention over whole sequences, forward and backward",
     "raffia bench attention --causal --ops softmax,rfa,rfa_gate --lengths 512,2048,8192 --threads 1,2 --json",
     add_bench_attention},
    {"bench", "step", "Time the attention of one token at a given depth",
     "raffia bench step --ops softmax,rfa_gate --input features,qk --lengths 512,2048,8192 --json", add_bench_step},
    {"bench", "decode", "Time token generation with whole models, at a given depth",
     "raffia bench decode --estimators rfa_gate,softmax --depths 0,512,4096,32768 --threads 1,2 --json", add_bench_decode},
    {"bench", "prefill", "Time reading prompts with whole models",
     "raffia bench prefill --estimators rfa_gate,softmax --lengths 512,2048,8192 --json", add_bench_prefill},
    {"bench", "session", "Time starting a model, and saving, restoring and forking sessions",
     "raffia bench session --model book-model --depths 100,100000 --json", add_bench_session},
    {"bench", "isa", "Time every op at each instruction set of this machine, and compare them",
     "raffia bench isa --ops softmax,rfa_gate,product_int8 --length 512 --json", add_bench_isa},
    {"bench", "train", "Time training: an attention layer or a whole model (needs raffia-train)",
     "raffia bench train --what layer --lengths 512,2048 --json", listed_only},
    {nullptr, "generate", "Continue a text with a language model, from a prompt or a saved state",
     "raffia generate my-model --prompt 'Once upon a time' --tokens 200 --temperature 0.8 --state-out story.state", add_generate},
    {nullptr, "translate", "Translate stdin line by line", "raffia translate en-de --beam 4 < english.txt > german.txt",
     add_translate},
    {nullptr, "classify", "Classify texts, pairs of texts, or images", "raffia classify reviews-model --top 3 < reviews.txt",
     add_classify},
    {"state", "info", "Show the contents of a state file", "raffia state info story.state", add_state_info},
    {"state", "save", "Read a prompt and save the state", "raffia state save my-model book.state --prompt-file book.txt",
     add_state_save},
    {"state", "restore", "Load a state into a model and show its position", "raffia state restore my-model book.state --check",
     add_state_restore},
    {nullptr, "approx", "Measure the error of estimators against exact attention, and their speed",
     "raffia approx --data walk --scale 1,2 --estimators rfa:log=true,lara,eva,ra --samples 16,64,256 --plot error.svg",
     add_approx},
    {nullptr, "train", "Train a model: lm, translate, classify, image, recall (needs raffia-train)",
     "raffia train lm --data book.txt --out book-model", listed_only},
    {nullptr, "convert", "Replace the softmax attention of a model by another attention (needs raffia-train)",
     "raffia convert imported --to rfa_gate converted --data stories.txt", listed_only},
    {nullptr, "eval", "Evaluate a trained model (needs raffia-train)", "raffia eval book-model --data other.txt --json",
     listed_only},
    {"import", "llama2c", "Import a checkpoint of llama2.c", "raffia import llama2c stories260K.bin tok512.bin stories",
     add_import_llama2c},
    {"import", "hf", "Import a LLaMA model from Hugging Face", "raffia import hf SmolLM-135M smollm --type int8", add_import_hf},
    {nullptr, "quantize", "Store the matrices of a model in fewer bytes", "raffia quantize stories stories-int8 --type int8",
     add_quantize},
    {nullptr, "completion", "Print the script that completes raffia's commands and flags in a shell",
     "source <(raffia completion bash)", add_completion},
    {nullptr, "man", "Print the manual page", "raffia man | man -l -", add_man},
    {nullptr, "info", "Show version, instruction sets, threads, caches and compiler", "raffia info --json", add_info},
};

constexpr Group kGroups[] = {
    {"bench", "Measure speed on this machine", "raffia bench attention --causal --lengths 512,2048"},
    {"state", "Save, load and show sessions as files", "raffia state info story.state"},
    {"import", "Import models from other projects", "raffia import llama2c stories260K.bin tok512.bin stories"},
};

constexpr Program kProgram{.name = "raffia",
                           .description = "Random Feature Attention: linear-time attention with a state of constant size",
                           .example = "raffia bench attention --causal --lengths 512,2048,8192",
                           .groups = kGroups,
                           .commands = kCommands};

bool begins_with(std::span<char* const> arguments, std::span<const std::string_view> words) {
  return words.size() <= arguments.size() && std::equal(words.begin(), words.end(), arguments.begin());
}

// Whether raffia-train runs this command line: it has the same commands under the same names.
bool needs_torch(std::span<char* const> arguments) {
  return std::ranges::any_of(kCommands, [arguments](const Command& command) {
    if (command.add != listed_only) return false;
    std::vector<std::string_view> words = {command.name};
    if (command.group != nullptr) words.insert(words.begin(), command.group);
    return begins_with(arguments, words);
  });
}

// Replaces this process by raffia-train (exec); returns only after an error.
int run_raffia_train(char** argv) {
  const std::filesystem::path path = raffia_train_path();
  let_waiting_threads_sleep();
  ::execv(path.c_str(), argv);
  say("raffia: cannot run {}: {}; it is only built with LibTorch (apt-get install libtorch-dev, RAFFIA_BUILD_TORCH=ON)",
      path.string(), std::strerror(errno));
  return 1;
}

}  // namespace
}  // namespace raffia::internal::cli

int main(int argc, char** argv) {
  const auto arguments = std::span<char* const>(argv, static_cast<size_t>(argc)).subspan(argc > 0 ? 1 : 0);
  if (raffia::internal::cli::needs_torch(arguments)) return raffia::internal::cli::run_raffia_train(argv);
  return raffia::internal::cli::run_program(raffia::internal::cli::kProgram, argc, argv);
}
