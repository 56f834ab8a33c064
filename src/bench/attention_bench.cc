#include "bench/attention_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/attention_ops.h"

namespace raffia::internal::bench {
namespace {

// Estimators that have no other form are always causal.
bool is_causal(const AttentionBenchOptions& options, const std::string& spec) {
  return options.causal || !traits_of(parse_estimator(spec)).bidirectional;
}

OpForm form_for(const AttentionBenchOptions& options, const std::string& spec, OpInput input, Pass pass) {
  return form_of(options.bench.shape, spec, input, is_causal(options, spec), pass);
}

// Everything to run at one length: softmax in each form that another op is compared with, then the ops.
std::vector<AttentionCase> cases_at(const AttentionBenchOptions& options, int64_t length) {
  std::vector<AttentionCase> cases;
  const bool with_softmax = measures_softmax(options.bench, length);
  const std::vector<std::string>& ops = options.bench.ops;
  for (const int64_t threads : options.bench.threads) {
    for (const Pass pass : options.passes) {
      const AttentionCase base = {.pass = pass, .threads = static_cast<int>(threads)};
      for (const bool causal : {false, true}) {
        const bool is_needed =
            std::any_of(ops.begin(), ops.end(), [&](const std::string& op) { return is_causal(options, op) == causal; });
        if (!with_softmax || !is_needed) continue;
        AttentionCase softmax = base;
        softmax.form.causal = causal;
        cases.push_back(softmax);
      }
      for (const std::string& op : ops) {
        if (op == kSoftmax) continue;
        for (const OpInput input : inputs_of(options.bench, op)) {
          const OpForm form = form_for(options, op, input, pass);
          for (const int64_t segment : form.traits().has_segments ? options.segments : std::vector<int64_t>{0}) {
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

BenchGroup group_at(const AttentionBenchOptions& options, int64_t length) {
  const BenchShape& shape = options.bench.shape;
  const auto inputs = std::make_shared<AttentionInputs>(shape, length);
  BenchGroup group{.length = length};
  for (const AttentionCase& bench : cases_at(options, length)) {
    Record record = describe(shape, bench.form, length, bench.threads);
    record.pass = std::string(name_in(kPasses, bench.pass));
    if (bench.form.traits().has_segments) record.segment = bench.segment;
    group.cases.push_back(
        {.record = std::move(record),
         .flops = attention_flops(shape, bench.form, bench.pass, length),
         .is_printed = bench.form.name != kSoftmax || asks_for_softmax(options.bench),
         .prepare = [bench, inputs](Executor& executor) { return prepare_attention(bench, inputs, executor); }});
  }
  return group;
}

}  // namespace

std::vector<Record> measure_attention(AttentionBenchOptions options, Observer& observer) {
  check(options.bench);
  for (const std::string& op : options.bench.ops) (void)form_for(options, op, OpInput::qk, Pass::forward);
  std::vector<BenchGroup> groups;
  for (const int64_t length : options.bench.lengths) groups.push_back(group_at(options, length));
  return run_bench(std::move(groups), options.bench, observer);
}

}  // namespace raffia::internal::bench
