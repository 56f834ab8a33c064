// Models for benchmarks: of random weights, or those of directories.
#ifndef RAFFIA_BENCH_MODELS_H_
#define RAFFIA_BENCH_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/weight_matrix.h"
#include "raffia/estimator.h"
#include "raffia/model.h"

namespace raffia::internal::bench {

// Models of random weights, or those of directories.
struct ModelChoice {
  int64_t layers = 6, width = 512, heads = 8, vocabulary = 8192;
  std::vector<Estimator> estimators = {parse_estimator("rfa_gate"), parse_estimator("softmax")};
  std::vector<WeightType> types = {WeightType::f32};
  std::vector<std::string> directories;
  bool no_mmap = false;
  uint64_t seed = 1;
};

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
// In groups that are compared with one another: those of one type of weights, or all directories. Throws OptionError.
std::vector<std::vector<BenchModel>> models_of(const ModelChoice& options);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_MODELS_H_
