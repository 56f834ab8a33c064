// raffia_golden DIRECTORY: writes the golden models and what the trainer answers to their inputs. scripts/golden.sh runs it.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>

#include "core/check.h"
#include "raffia/model_config.h"
#include "torch/golden.h"
#include "torch/libtorch.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

// Well below the 1e-4 that runtimes are held to.
constexpr double kTolerance = 1e-5;

// Logits of fp32 kernels must be those of the twins in double: a model with a tiny denominator would test luck.
double rounding(const ModelConfig& config, const NamedTensors& inputs, const std::filesystem::path& weights,
                const Tensor& logits) {
  const auto exact = make_model(config);
  load_weights(*exact, weights);
  exact->eval();
  exact->to(at::kDouble);
  return (golden_logits(*exact, inputs) - logits).abs().max().item<double>();
}

void write(const GoldenCase& golden, const std::filesystem::path& directory) {
  // The first of these seeds whose model is well conditioned.
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    torch::manual_seed(seed);
    const auto model = make_golden_model(golden.config);
    NamedTensors tensors = golden_inputs(golden.config);
    const Tensor logits = golden_logits(*model, tensors);
    std::filesystem::create_directories(directory);
    save_weights(*model, directory / "model.safetensors");
    const double error = rounding(golden.config, tensors, directory / "model.safetensors", logits);
    const double size = logits.abs().max().item<double>();
    if (!(error <= kTolerance)) continue;
    save_model_config(golden.config, directory / "config.json");
    tensors.emplace_back("logits", logits);
    save_tensors(directory / "expected.safetensors", tensors);
    fmt::print("{:24} seed {:2}  largest logit {:6.2f}  rounding {:.1e}\n", golden.name, seed, size, error);
    return;
  }
  throw std::runtime_error(fmt::format("{}: no seed gives logits that are known to {:g}", golden.name, kTolerance));
}

}  // namespace
}  // namespace raffia::nn

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: raffia_golden DIRECTORY\n", stderr);
    return 2;
  }
  try {
    for (const auto& golden : raffia::nn::golden_cases()) raffia::nn::write(golden, std::filesystem::path(argv[1]) / golden.name);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "raffia_golden: %s\n", error.what());
    return 1;
  }
  return 0;
}
