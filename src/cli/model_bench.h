// Common to the benchmarks of whole models: flags, models, records and the run itself. Tests have the names of llama-bench:
// pp512 reads a prompt of 512 tokens, tg32 @ d4096 generates 32 tokens after 4096.
#ifndef RAFFIA_CLI_MODEL_BENCH_H_
#define RAFFIA_CLI_MODEL_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/shared/flags.h"
#include "core/weight_matrix.h"
#include "raffia/estimator.h"
#include "raffia/model.h"

namespace raffia::cli {

// Models of random weights, or those of directories.
struct ModelFlags {
  int64_t layers = 6, width = 512, heads = 8, vocabulary = 8192;
  std::vector<Estimator> estimators = {parse_estimator("rfa_gate"), parse_estimator("softmax")};
  std::vector<WeightType> types = {WeightType::f32};
  std::vector<std::string> directories;
  bool no_mmap = false;
  uint64_t seed = 1;
};
void add_model_flags(CommandLine& command, ModelFlags& flags);

// A model that is loaded or made at first use.
struct BenchModel {
  std::string op;                     // its estimators
  std::optional<std::string> name;    // of its directory
  ModelConfig config = {};            // of random weights
  WeightType type = WeightType::f32;  // likewise
  std::string directory = {};         // empty: random weights
  bool no_mmap = false;               // of the weights in the directory
  uint64_t seed = 1;
  std::vector<std::byte> weights = {};  // made by prepare(), or empty

  void prepare();                               // makes the weights, if they are random
  std::shared_ptr<const Model> make();          // uses up prepared weights
  int64_t state_bytes_at(int64_t depth) const;  // lower bound: of exact attention
};
// In groups that are compared with one another: those of one type of weights, or all directories.
std::vector<std::vector<BenchModel>> models_of(const ModelFlags& flags);

struct ModelTest {
  enum class Kind : uint8_t { prefill, decode };
  Kind kind = Kind::decode;
  int64_t tokens = 0;  // of one session, in one run
  int64_t depth = 0;   // tokens before
  int64_t batch = 1;   // sessions

  std::string name() const;
};

struct ModelBenchOptions {
  ModelFlags models;
  std::vector<int64_t> threads = {1};
  int64_t repeats = 5;
  int64_t cache_limit = 4;  // 10^9 bytes: tests whose sessions need more memory are skipped
  FormatFlags output;
};
void add_run_flags(CommandLine& command, ModelBenchOptions& options);

// The fields with the names they are printed under; docs/cli.md explains them.
struct ModelRecord {
  std::string test, op;
  std::optional<std::string> model;
  std::string type;
  int64_t batch = 0, depth = 0, threads = 0;
  std::string isa;
  int64_t layers = 0, width = 0, heads = 0, vocabulary = 0, parameters = 0;
  double seconds = 0, tokens_per_second = 0;
  std::optional<double> ratio_to_softmax;
  int64_t state_bytes = 0, weight_bytes = 0;
  std::optional<double> weight_gbps, bandwidth_gbps, bandwidth_fraction;  // decode, batch 1
  std::optional<int64_t> peak_rss_bytes;
};

// Measures memory, then time, and prints the records on stdout.
std::vector<ModelRecord> run_model_bench(const std::vector<ModelTest>& tests, const ModelBenchOptions& options);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_MODEL_BENCH_H_
