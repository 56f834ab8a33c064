// Error and time of attention estimators, one record per estimator and number of samples.
#ifndef RAFFIA_BENCH_APPROX_H_
#define RAFFIA_BENCH_APPROX_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/approx_data.h"
#include "bench/format.h"
#include "bench/observer.h"
#include "core/named.h"

namespace raffia::internal::bench {

enum class Target : uint8_t { softmax, gaussian };
inline constexpr Named<Target> kTargets[] = {{"softmax", Target::softmax}, {"gaussian", Target::gaussian}};

struct ApproxOptions {
  std::vector<std::string> input;  // files; empty: generated data
  std::vector<std::string> names = {"q", "k", "v"};
  std::vector<DataSet> data = {DataSet::walk};
  std::vector<double> scales = {1};
  int64_t length = 1024, head_dim = 64;
  std::vector<std::string> estimators;  // strings of parse_estimator; empty: the defaults for causal or bidirectional attention
  std::vector<int64_t> samples = {16, 64, 256};
  int64_t seeds = 5;
  uint64_t seed = 0;
  bool causal = false;
  Target target = Target::softmax;
  double gate_logit = 6;
  int64_t threads = 0;    // 0: one per CPU
  bool matrices = false;  // attention matrices are asked for, too
};

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

void print_records(std::span<const ApproxRecord> records, Format format, std::ostream& out);

// PREFIX.svg and PREFIX.png: error against samples. PREFIX-time.svg and PREFIX-time.png: error against time.
void plot_approx(std::span<const ApproxRecord> records, const std::string& prefix);

// An attention matrix [length, length], row-major, and its title.
struct AttentionMatrix {
  std::string title;
  int64_t length = 0;
  std::vector<float> weights;
};

struct ApproxResults {
  std::vector<ApproxRecord> records;
  std::vector<AttentionMatrix> matrices;  // if asked for: of exact attention and of every estimator, on the first data set
};

// Throws OptionError if options contradict each other, and InvalidArgument for an estimator whose settings do not fit each other
// or the data.
ApproxResults measure_approx(const ApproxOptions& options, Observer& observer);

// PREFIX.svg and PREFIX.png: the matrices side by side, one logarithmic scale of colours for all.
void plot_matrices(std::span<const AttentionMatrix> matrices, const std::string& prefix);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_APPROX_H_
