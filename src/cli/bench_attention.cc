// raffia bench attention: attention over whole sequences.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/attention_ops.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/gnuplot.h"
#include "cli/plot.h"
#include "raffia/state.h"

namespace raffia::cli {
namespace {

struct Flags {
  BenchOptions bench = {.ops = {Op::softmax, Op::rfa, Op::rfa_gate}, .lengths = {512, 2048, 8192}, .softmax_max_length = 16384};
  std::vector<Pass> passes = {Pass::forward};
  bool causal = false;
  std::vector<int64_t> segments = {0};
  std::string plot;
};

// Backward passes of linear ops count 10 F (dv + 1) per token and head; their projections are left out of the count.
double flops_of(const AttentionCase& bench, const BenchShape& shape, int64_t length) {
  const auto tokens = static_cast<double>(shape.batch * length);
  if (bench.op == Op::softmax) {
    const auto d = static_cast<double>(shape.head_dim), dv = static_cast<double>(shape.value_dim);
    const double gradients = (3 * d + 2 * dv) / (d + dv);  // five products in place of two
    const double passes = bench.pass == Pass::forward ? 1.0 : bench.pass == Pass::backward ? gradients : 1.0 + gradients;
    return tokens * passes * softmax_flops(shape, length) * (bench.causal ? 0.5 : 1.0);
  }
  const double passes = bench.pass == Pass::forward ? 1.0 : bench.pass == Pass::backward ? 2.5 : 3.5;
  return tokens * passes * linear_flops(shape, make_map(shape, bench.pass == Pass::forward ? bench.input : Input::features));
}

int64_t state_bytes(const AttentionCase& bench, const BenchShape& shape, int64_t length) {
  if (bench.op == Op::softmax) return kv_cache_bytes(shape, length);
  const State state(make_map(shape, bench.input), {.batch = shape.batch, .value_dim = shape.value_dim});
  return static_cast<int64_t>(state.size_bytes());
}

bool is_causal(const Flags& flags, Op op) { return flags.causal || op == Op::rfa_gate; }

bool asks_for(const Flags& flags, Op op) {
  return std::find(flags.bench.ops.begin(), flags.bench.ops.end(), op) != flags.bench.ops.end();
}

// Everything to run at one length: softmax in each form that another op is compared with, then the ops.
std::vector<AttentionCase> cases_at(const Flags& flags, int64_t length) {
  std::vector<AttentionCase> cases;
  const bool with_softmax = measures_softmax(flags.bench, length);
  for (const int64_t threads : flags.bench.threads) {
    for (const Pass pass : flags.passes) {
      const AttentionCase base = {.pass = pass, .threads = static_cast<int>(threads)};
      for (const bool causal : {false, true}) {
        const bool is_needed =
            std::any_of(flags.bench.ops.begin(), flags.bench.ops.end(), [&](Op op) { return is_causal(flags, op) == causal; });
        if (!with_softmax || !is_needed) continue;
        AttentionCase softmax = base;
        softmax.causal = causal;
        cases.push_back(softmax);
      }
      for (const Op op : flags.bench.ops) {
        if (op == Op::softmax) continue;
        for (const Input input : flags.bench.inputs) {
          for (const int64_t segment : flags.segments) {
            AttentionCase linear = base;
            linear.op = op;
            linear.input = input;
            linear.causal = is_causal(flags, op);
            linear.segment = segment;
            cases.push_back(linear);
          }
        }
      }
    }
  }
  return cases;
}

BenchGroup group_at(const Flags& flags, int64_t length) {
  const BenchShape& shape = flags.bench.shape;
  const auto inputs = std::make_shared<AttentionInputs>(shape, length);
  BenchGroup group{.length = length};
  for (const AttentionCase& bench : cases_at(flags, length)) {
    Record record = describe(flags.bench, bench.op, bench.input, length, bench.threads);
    record.pass = std::string(name_in(kPasses, bench.pass));
    record.causal = bench.causal;
    record.state_bytes = state_bytes(bench, shape, length);
    if (bench.op != Op::softmax) record.segment = bench.segment;
    group.cases.push_back(
        {.record = std::move(record),
         .flops = flops_of(bench, shape, length),
         .is_printed = asks_for(flags, bench.op),
         .prepare = [bench, inputs](Executor& executor) { return prepare_attention(bench, inputs, executor); }});
  }
  return group;
}

void run(Flags& flags) {
  check(flags.bench);
  if (!flags.plot.empty()) require_gnuplot("--plot");
  std::vector<BenchGroup> groups;
  for (const int64_t length : flags.bench.lengths) groups.push_back(group_at(flags, length));
  const std::vector<Record> records = run_bench(std::move(groups), flags.bench);
  if (!flags.plot.empty()) plot_crossover(records, flags.plot);
}

}  // namespace

Run add_bench_attention(CLI::App& app) {
  const auto flags = std::make_shared<Flags>();
  add_bench_flags(app, flags->bench);
  add_names(app, "--passes", kPasses, flags->passes, "forward, backward, forward+backward");
  app.add_flag("--causal", flags->causal, "Causal softmax and rfa; rfa_gate always is");
  add_integers(app, "--segment", flags->segments, "Tokens per parallel segment; 0: chosen from the shape; -1: no segments");
  app.add_option("--plot", flags->plot, "Write PREFIX.svg and PREFIX.png: time against length (needs gnuplot)")
      ->type_name("PREFIX");
  return [flags] { run(*flags); };
}

}  // namespace raffia::cli
