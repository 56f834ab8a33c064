// Error and time of attention estimators, one record per estimator and number of samples.
#ifndef RAFFIA_CLI_APPROX_H_
#define RAFFIA_CLI_APPROX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace raffia::cli {

// The fields with the names they are printed under; docs/cli.md explains them.
struct ApproxRecord {
  std::string estimator, spec;
  std::optional<int64_t> samples;
  std::string data;
  std::optional<double> scale;
  bool causal = false;
  std::string target;
  int64_t threads = 0;
  int64_t batch = 0, heads = 0, kv_heads = 0, length = 0, head_dim = 0, value_dim = 0;
  int64_t seeds = 0;
  double mse = 0;
  std::optional<double> mse_stderr;  // nullopt: only one seed
  double base_mse = 0;
  double max_abs_error = 0;
  std::optional<double> clamp_rate;  // nullopt: this estimator never clamps a denominator
  double seconds = 0;
  std::optional<double> ratio_to_softmax;
};

// PREFIX.svg and PREFIX.png: error against samples. PREFIX-time.svg and PREFIX-time.png: error against time.
void plot_approx(std::span<const ApproxRecord> records, const std::string& prefix);

// An attention matrix [length, length], row-major, and its title.
struct AttentionMatrix {
  std::string title;
  int64_t length = 0;
  std::vector<float> weights;
};

// PREFIX.svg and PREFIX.png: the matrices side by side, one logarithmic scale of colours for all.
void plot_matrices(std::span<const AttentionMatrix> matrices, const std::string& prefix);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_APPROX_H_
