// raffia bench attention: attention over whole sequences.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/attention_ops.h"
#include "cli/bench.h"
#include "cli/shared/command.h"
#include "cli/shared/gnuplot.h"
#include "cli/shared/plot.h"

namespace raffia::cli {
namespace {

struct AttentionBenchFlags {
  BenchOptions bench = {.ops = {"softmax", "rfa", "rfa_gate"}, .lengths = {512, 2048, 8192}, .softmax_max_length = 16384};
  std::vector<Pass> passes = {Pass::forward};
  bool causal = false;
  std::vector<int64_t> segments = {0};
  std::string plot;
};

// Estimators that have no other form are always causal.
bool is_causal(const AttentionBenchFlags& flags, const std::string& spec) {
  return flags.causal || !traits_of(parse_estimator(spec)).bidirectional;
}

// A pass of training draws samples where `mean` is not set, as training does.
OpForm form_for(const AttentionBenchFlags& flags, const std::string& spec, OpInput input, Pass pass) {
  OpForm form = form_of(flags.bench.shape, spec, input, is_causal(flags, spec));
  if (pass != Pass::forward && !form.estimator.mean) form.estimator.mean = false;
  return form;
}

// Everything to run at one length: softmax in each form that another op is compared with, then the ops.
std::vector<AttentionCase> cases_at(const AttentionBenchFlags& flags, int64_t length) {
  std::vector<AttentionCase> cases;
  const bool with_softmax = measures_softmax(flags.bench, length);
  const std::vector<std::string>& ops = flags.bench.ops;
  for (const int64_t threads : flags.bench.threads) {
    for (const Pass pass : flags.passes) {
      const AttentionCase base = {.pass = pass, .threads = static_cast<int>(threads)};
      for (const bool causal : {false, true}) {
        const bool is_needed =
            std::any_of(ops.begin(), ops.end(), [&](const std::string& op) { return is_causal(flags, op) == causal; });
        if (!with_softmax || !is_needed) continue;
        AttentionCase softmax = base;
        softmax.form.causal = causal;
        cases.push_back(softmax);
      }
      for (const std::string& op : ops) {
        if (op == kSoftmax) continue;
        for (const OpInput input : inputs_of(flags.bench, op)) {
          const OpForm form = form_for(flags, op, input, pass);
          for (const int64_t segment : form.traits().has_segments ? flags.segments : std::vector<int64_t>{0}) {
            AttentionCase other = base;
            other.form = form;
            other.segment = segment;
            cases.push_back(other);
          }
        }
      }
    }
  }
  return cases;
}

BenchGroup group_at(const AttentionBenchFlags& flags, int64_t length) {
  const BenchShape& shape = flags.bench.shape;
  const auto inputs = std::make_shared<AttentionInputs>(shape, length);
  BenchGroup group{.length = length};
  for (const AttentionCase& bench : cases_at(flags, length)) {
    Record record = describe(shape, bench.form, length, bench.threads);
    record.pass = std::string(name_in(kPasses, bench.pass));
    if (bench.form.traits().has_segments) record.segment = bench.segment;
    group.cases.push_back(
        {.record = std::move(record),
         .flops = attention_flops(shape, bench.form, bench.pass, length),
         .is_printed = bench.form.name != kSoftmax || asks_for_softmax(flags.bench),
         .prepare = [bench, inputs](Executor& executor) { return prepare_attention(bench, inputs, executor); }});
  }
  return group;
}

void run(AttentionBenchFlags& flags) {
  check(flags.bench);
  for (const std::string& op : flags.bench.ops) (void)form_for(flags, op, OpInput::qk, Pass::forward);
  if (!flags.plot.empty()) require_gnuplot("--plot");
  std::vector<BenchGroup> groups;
  for (const int64_t length : flags.bench.lengths) groups.push_back(group_at(flags, length));
  const std::vector<Record> records = run_bench(std::move(groups), flags.bench);
  if (!flags.plot.empty()) plot_crossover(records, flags.plot);
}

}  // namespace

Run add_bench_attention(CommandLine& command) {
  const auto flags = std::make_shared<AttentionBenchFlags>();
  add_bench_flags(command, flags->bench);
  add_names(command, "--passes", kPasses, flags->passes, "forward, backward, forward+backward");
  command.add_switch("--causal", flags->causal, "Causal attention; estimators without another form are always causal");
  add_integers(command, "--segment", flags->segments, "Tokens per parallel segment; 0: chosen from the shape; -1: no segments");
  command.add("--plot", flags->plot, "Write PREFIX.svg and PREFIX.png: time against length (needs gnuplot)").type_name("PREFIX");
  return [flags] { run(*flags); };
}

}  // namespace raffia::cli
