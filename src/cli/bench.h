// Common to the benchmarks of attention, decoding and training: flags, shapes, and the run itself.
#ifndef RAFFIA_CLI_BENCH_H_
#define RAFFIA_CLI_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arrays.h"
#include "cli/records.h"
#include "cli/shared/flags.h"
#include "estimators/work.h"
#include "raffia/estimator.h"
#include "raffia/features.h"
#include "raffia/isa.h"
#include "raffia/threads.h"

namespace raffia::cli {

enum class OpInput : uint8_t {
  features,  // phi(q) and phi(k) are given
  qk,        // the map is part of the op
};
inline constexpr Named<OpInput> kInputs[] = {{"features", OpInput::features}, {"qk", OpInput::qk}};

inline constexpr Named<Pass> kPasses[] = {
    {"forward", Pass::forward}, {"backward", Pass::backward}, {"forward+backward", Pass::forward_backward}};

inline constexpr std::string_view kSoftmax = "softmax";  // what all others are compared with

// One of several things that an estimator can do.
struct OpForm {
  std::string name = std::string(kSoftmax);  // as the user wrote it
  Estimator estimator = {};
  OpInput input = OpInput::qk;
  bool causal = false;

  EstimatorTraits traits() const { return traits_of(estimator); }
};

struct BenchShape {
  int64_t batch = 1;
  int64_t heads = 8;
  int64_t kv_heads = 0;  // as many as heads if 0, until check() fills it in
  int64_t head_dim = 64;
  int64_t value_dim = 0;                // head_dim if 0, until check() fills it in
  int64_t random_features = 64;         // D; causal eva: R
  std::optional<int64_t> samples = {};  // of estimators without a map and without samples=N; nullopt: their default
  int64_t window = 32;
  int64_t chunk = 8;
  MapKind map = MapKind::trig;
  DType dtype = DType::f32;
  ArrayLayout layout = ArrayLayout::bthd;
  uint64_t seed = 0;
};

struct BenchOptions {
  BenchShape shape;
  std::vector<std::string> ops;  // estimators
  std::vector<OpInput> inputs = {OpInput::qk};
  std::vector<int64_t> lengths;
  std::vector<int64_t> threads = {1};
  int64_t repeats = 7;
  bool no_softmax = false;
  int64_t softmax_max_length = 0;
  std::optional<Isa> isa;
  FormatFlags output;
};

// Registers the flags; `options` holds their defaults and must outlive the command.
void add_bench_flags(CommandLine& command, BenchOptions& options);

// Throws UsageError if flags contradict each other, and limits the ISA.
void check(BenchOptions& options);

// The estimator of `spec`, with the flags in place of settings that it does not name. Throws UsageError if it cannot run so.
OpForm form_of(const BenchShape& shape, const std::string& spec, OpInput input, bool causal);

// The map of an estimator; with `input` features, the identity on its features.
FeatureMap make_map(const BenchShape& shape, const Estimator& estimator, OpInput input);
MemorySizes memory_sizes(const BenchShape& shape, const FeatureMap* map, bool has_far);

// The fields of a record that follow from the flags.
Record describe(const BenchShape& shape, const OpForm& form, int64_t length, int64_t threads);
// See estimators/work.h.
double attention_flops(const BenchShape& shape, const OpForm& form, Pass pass, int64_t length);
double step_flops(const BenchShape& shape, const OpForm& form, int64_t depth);

// One contender at one shape.
struct BenchCase {
  Record record;                                                     // all fields that are known before measuring
  double flops = 0;                                                  // of one run
  int64_t tokens = 0;                                                // of one run; 0: tokens per second are not reported
  bool is_printed = true;                                            // false: softmax, measured only for the ratios
  std::function<std::function<void()>(Executor& executor)> prepare;  // allocates its arrays and returns the function to time
};

// Cases that are interleaved: same length.
struct BenchGroup {
  int64_t length = 0;
  std::vector<BenchCase> cases;
  // Optional: reads the bytes of the softmax cases once, to compute the fraction of the bandwidth that they reach.
  std::function<std::function<void()>(Executor& executor, int threads)> prepare_read;
};

// Whether softmax runs at this length, printed or not.
bool measures_softmax(const BenchOptions& options, int64_t length);
bool asks_for_softmax(const BenchOptions& options);

// The inputs that an estimator runs with: those without a map run once for any --input.
std::vector<OpInput> inputs_of(const BenchOptions& options, const std::string& spec);

// Measures memory, then time, and prints the records on stdout. Returns what was printed.
std::vector<Record> run_bench(std::vector<BenchGroup> groups, const BenchOptions& options);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_BENCH_H_
