// Common to the benchmarks of attention, decoding and training: flags, shapes, and the run itself.
#ifndef RAFFIA_CLI_BENCH_H_
#define RAFFIA_CLI_BENCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/arrays.h"
#include "cli/records.h"
#include "cli/shared/flags.h"
#include "raffia/features.h"
#include "raffia/isa.h"
#include "raffia/threads.h"

namespace raffia::cli {

enum class Op : uint8_t { softmax, rfa, rfa_gate, hybrid, lara, ra, eva };
enum class OpInput : uint8_t {
  features,  // phi(q) and phi(k) are given
  qk,        // the map is part of the op
};

inline constexpr Named<Op> kOps[] = {{"softmax", Op::softmax}, {"rfa", Op::rfa},   {"rfa_gate", Op::rfa_gate},
                                     {"hybrid", Op::hybrid},   {"lara", Op::lara}, {"ra", Op::ra},
                                     {"eva", Op::eva}};
inline constexpr Named<OpInput> kInputs[] = {{"features", OpInput::features}, {"qk", OpInput::qk}};

enum class Pass : uint8_t { forward, backward, forward_backward };

inline constexpr Named<Pass> kPasses[] = {
    {"forward", Pass::forward}, {"backward", Pass::backward}, {"forward+backward", Pass::forward_backward}};

// Ops with random features of queries and keys; the others read q and k and ignore --input.
constexpr bool has_map(Op op) { return op == Op::rfa || op == Op::rfa_gate || op == Op::hybrid; }

// One of several things that an op can do.
struct OpForm {
  Op op = Op::softmax;
  OpInput input = OpInput::qk;
  bool causal = false;
};

struct BenchShape {
  int64_t batch = 1;
  int64_t heads = 8;
  int64_t kv_heads = 0;  // as many as heads if 0, until check() fills it in
  int64_t head_dim = 64;
  int64_t value_dim = 0;                // head_dim if 0, until check() fills it in
  int64_t random_features = 64;         // D; causal eva: R
  std::optional<int64_t> samples = {};  // nullopt: the default of the op, see op_options.h
  bool draws = false;                   // bidirectional lara: forward passes draw samples, too
  int64_t window = 32;
  int64_t chunk = 8;
  MapKind map = MapKind::trig;
  DType dtype = DType::f32;
  ArrayLayout layout = ArrayLayout::bthd;
  uint64_t seed = 0;
};

struct BenchOptions {
  BenchShape shape;
  std::vector<Op> ops;
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

// The map of --map; with `input` features, the identity on its features.
FeatureMap make_map(const BenchShape& shape, OpInput input);

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
bool asks_for(const BenchOptions& options, Op op);

// The inputs that each op runs with: softmax and the sampling ops have no map and run once for any --input.
std::vector<OpInput> inputs_of(const BenchOptions& options, Op op);

// Measures memory, then time, and prints the records on stdout. Returns what was printed.
std::vector<Record> run_bench(std::vector<BenchGroup> groups, const BenchOptions& options);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_BENCH_H_
