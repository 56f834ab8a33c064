#include "bench/isa_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "bench/attention_ops.h"
#include "bench/interleave.h"
#include "bench/kernel_ops.h"
#include "bench/machine_probe.h"
#include "bench/step_ops.h"
#include "core/dispatch.h"
#include "raffia/isa.h"

namespace raffia::internal::bench {
namespace {

// Puts the ISA back that was active before.
class KeptIsa {
 public:
  KeptIsa() = default;
  ~KeptIsa() { set_max_isa(before_); }
  KeptIsa(const KeptIsa&) = delete;
  KeptIsa& operator=(const KeptIsa&) = delete;

 private:
  Isa before_ = active_isa();
};

// One row. All ISAs run on the same arrays, so that none of them has the better addresses.
struct IsaCase {
  IsaRecord record;             // all fields that are known before measuring
  std::optional<double> flops;  // of one run of the op
  int64_t runs = 1;             // of the op, in a call of the function that `prepare` returns
  std::function<std::function<void()>(Executor& executor)> prepare;  // allocates its arrays
};

// --- What is measured ---

std::vector<OpInput> inputs_of(const EstimatorTraits& traits) {
  if (!traits.has_map) return {OpInput::qk};
  return {OpInput::features, OpInput::qk};
}

IsaRecord describe_case(const OpForm& form, std::string pass, std::string shape, const BenchShape& of, int64_t threads) {
  return {.op = form.name,
          .pass = std::move(pass),
          .input = std::string(name_in(kInputs, form.input)),
          .causal = form.causal,
          .shape = std::move(shape),
          .dtype = name_of(of.dtype),
          .threads = threads};
}

void add_attention(const IsaBenchOptions& options, const std::string& op, int64_t threads,
                   const std::shared_ptr<AttentionInputs>& inputs, std::vector<IsaCase>& cases) {
  const BenchShape& shape = options.shape;
  const EstimatorTraits traits = traits_of(parse_estimator(op));
  const Extents<4> extents{shape.batch, options.length, shape.heads, shape.head_dim};
  for (const bool causal : {true, false}) {
    if (causal ? !traits.causal : !traits.bidirectional) continue;
    for (const OpInput input : inputs_of(traits)) {
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const OpForm form = form_of(shape, op, input, causal, pass);
        const AttentionCase bench{.form = form, .pass = pass, .threads = static_cast<int>(threads)};
        cases.push_back(
            {.record = describe_case(form, std::string(name_in(kPasses, pass)), to_string(extents.data(), 4), shape, threads),
             .flops = attention_flops(shape, form, pass, options.length),
             .prepare = [bench, inputs](Executor& executor) { return prepare_attention(bench, inputs, executor); }});
      }
    }
  }
}

void add_steps(const IsaBenchOptions& options, const std::string& op, int64_t threads, std::vector<IsaCase>& cases) {
  const BenchShape& shape = options.shape;
  const int64_t depth = options.length;
  const EstimatorTraits traits = traits_of(parse_estimator(op));
  const bool reads_cache = op == kSoftmax;
  if (!reads_cache && !(traits.has_memory && traits.constant_memory)) return;
  const std::string text = fmt::format("[{}, {}, {}] after {}", shape.batch, shape.heads, shape.head_dim, depth);
  for (const OpInput input : inputs_of(traits)) {
    const OpForm form = form_of(shape, op, input, true);
    IsaCase one{.record = describe_case(form, "step", text, shape, threads), .flops = step_flops(shape, form, depth)};
    if (reads_cache) {
      one.prepare = [shape, depth, threads](Executor& executor) {
        return prepare_softmax_step(shape, std::make_shared<KvCache>(shape, depth), static_cast<int>(threads), executor);
      };
    } else {
      one.runs = steps_of_window(form);
      one.prepare = [shape, form, depth, threads, runs = one.runs](Executor& executor) -> std::function<void()> {
        return [step = prepare_step(shape, form, depth, static_cast<int>(threads), executor), runs] {
          for (int64_t i = 0; i < runs; ++i) step();
        };
      };
    }
    cases.push_back(std::move(one));
  }
}

void add_kernel_op(const IsaBenchOptions& options, const std::string& op, int64_t threads, std::vector<IsaCase>& cases) {
  for (const KernelRun& run : runs_of_kernel_op(options.shape, options.length, op)) {
    if (!run.is_parallel && threads != options.threads.front()) continue;  // once is enough
    const int64_t used = run.is_parallel ? threads : 1;
    cases.push_back(
        {.record = {.op = op, .pass = "forward", .shape = run.shape, .dtype = name_of(run.dtype), .threads = used},
         .flops = run.flops,
         .prepare = [prepare = run.prepare, used](Executor& executor) { return prepare(static_cast<int>(used), executor); }});
  }
}

// All that is measured of one op. Cases of different ops do not take turns: their arrays would all be in memory at once.
std::vector<IsaCase> cases_of(const IsaBenchOptions& options, const std::string& op) {
  std::vector<IsaCase> cases;
  const std::vector<std::string> kernels = kernel_op_names();
  const bool is_kernel = std::ranges::find(kernels, op) != kernels.end();
  const auto inputs = std::make_shared<AttentionInputs>(options.shape, options.length);
  for (const int64_t threads : options.threads) {
    if (is_kernel) {
      add_kernel_op(options, op, threads, cases);
    } else {
      add_attention(options, op, threads, inputs, cases);
      add_steps(options, op, threads, cases);
    }
  }
  return cases;
}

std::vector<std::string> all_ops() {
  std::vector<std::string> ops;
  for (const EstimatorKind kind : estimator_kinds()) ops.emplace_back(name_of(kind));
  for (std::string& name : kernel_op_names()) ops.push_back(std::move(name));
  return ops;
}

std::vector<Isa> measured_isas(const IsaBenchOptions& options, Observer& observer) {
  std::vector<Isa> isas = available_isas();
  if (!options.scalar && isas.size() > 1) std::erase(isas, Isa::scalar);
  if (isas.size() > 1) return isas;
  observer.note(fmt::format("there is nothing to compare {} with{}", name_of(isas.front()),
                            available_isas().size() > 1 ? "; --scalar measures scalar, too" : ""));
  return isas;
}

// --- How it is measured ---

using Peaks = std::map<std::pair<Isa, int64_t>, double>;  // FLOP/s of multiply-adds by ISA and threads, the best of the run

// Progress units of a turn, roughly seconds: short ops run for 2 ms; multiply-adds at 20 GFLOP/s, as with 128-bit vectors.
double work_of(const IsaCase& bench) { return std::max(2e-3, bench.flops.value_or(0) * static_cast<double>(bench.runs) / 2e10); }

// The cases of one op, each at every ISA.
class IsaGroup {
 public:
  IsaGroup(std::span<IsaCase> cases, std::span<const Isa> isas, const IsaBenchOptions& options, Executor& executor)
      : cases_(cases), isas_(isas), repeats_(static_cast<int>(options.repeats)) {
    for (const IsaCase& bench : cases) add(bench.prepare(executor), work_of(bench));
    for (const int64_t threads : options.threads) {
      add([&executor, threads] { run_multiply_adds(executor, static_cast<int>(threads)); }, 0);
      for (const Isa isa : isas) {
        set_max_isa(isa);
        peak_flops_.push_back({{isa, threads}, run_multiply_adds(executor, static_cast<int>(threads))});
      }
    }
  }

  void measure(Peaks& peaks, Observer& observer) {
    interleave(contenders_, repeats_, observer);
    for (size_t i = 0; i < cases_.size(); ++i) {
      fill(i);
      // Noise must not accuse an ISA: what looks slower has to look so again.
      if (cases_[i].record.slower) repeat(i, observer);
    }
    for (size_t i = 0; i < peak_flops_.size(); ++i) {
      const auto& [key, flops] = peak_flops_[i];
      double& best = peaks[key];
      best = std::max(best, flops / contenders_[cases_.size() * isas_.size() + i].seconds);
    }
  }

 private:
  // A contender for each ISA, narrowest first.
  void add(const std::function<void()>& run, double work) {
    for (const Isa isa : isas_) {
      contenders_.push_back({.run = run, .begin_turn = [isa] { set_max_isa(isa); }, .work = work});
    }
  }

  std::span<Contender> contenders_of(size_t index) { return {&contenders_[index * isas_.size()], isas_.size()}; }

  void fill(size_t index) {
    IsaCase& bench = cases_[index];
    const std::span<const Contender> contenders = contenders_of(index);
    bench.record.times.clear();
    for (size_t i = 0; i < isas_.size(); ++i) {
      bench.record.times.push_back(
          {.isa = std::string(name_of(isas_[i])), .seconds = contenders[i].seconds / static_cast<double>(bench.runs)});
    }
    compare_isas(bench.record);
  }

  void repeat(size_t index, Observer& observer) {
    const std::span<Contender> contenders = contenders_of(index);
    std::vector<Contender> again(contenders.begin(), contenders.end());
    for (Contender& contender : again) {
      contender.seconds = std::numeric_limits<double>::infinity();
      contender.work = 0;  // was not expected: the total has no room for it
    }
    interleave(again, repeats_, observer);
    for (size_t i = 0; i < again.size(); ++i) contenders[i].seconds = std::min(contenders[i].seconds, again[i].seconds);
    fill(index);
  }

  std::span<IsaCase> cases_;
  std::span<const Isa> isas_;
  int repeats_;
  std::vector<Contender> contenders_;                           // those of the cases, then multiply-adds
  std::vector<std::pair<Peaks::key_type, double>> peak_flops_;  // of one run of the latter
};

void fill_speeds(std::span<IsaCase> cases, std::span<const Isa> isas, const Peaks& peaks) {
  for (IsaCase& bench : cases) {
    if (!bench.flops) continue;
    for (size_t i = 0; i < isas.size(); ++i) {
      IsaTime& time = bench.record.times[i];
      const double speed = *bench.flops / time.seconds;
      time.gflops = 1e-9 * speed;
      time.peak_fraction = speed / peaks.at({isas[i], bench.record.threads});
    }
  }
}

double total_work(std::span<const std::vector<IsaCase>> groups, size_t isas, int64_t repeats) {
  double work = 0;
  for (const std::vector<IsaCase>& group : groups) {
    for (const IsaCase& bench : group) work += work_of(bench);
  }
  return work * static_cast<double>(isas) * static_cast<double>(repeats + 1);  // one to warm up
}

}  // namespace

std::vector<IsaRecord> measure_isas(IsaBenchOptions options, Observer& observer) {
  check(options.shape);
  if (options.ops.empty()) options.ops = all_ops();
  std::vector<std::vector<IsaCase>> groups;
  for (const std::string& op : options.ops) groups.push_back(cases_of(options, op));

  const KeptIsa kept;
  const std::vector<Isa> isas = measured_isas(options, observer);
  for (const IsaException& exception : isa_exceptions()) {
    observer.note(fmt::format("{} would use {}; here it is measured at every ISA", exception.op, name_of(exception.isa)));
  }
  const WithoutIsaLimits no_limits;
  observer.start(total_work(groups, isas.size(), options.repeats));
  const std::unique_ptr<Executor> executor =
      make_thread_pool(static_cast<int>(*std::max_element(options.threads.begin(), options.threads.end())));
  Peaks peaks;
  for (size_t i = 0; i < groups.size(); ++i) {
    observer.begin(options.ops[i]);
    IsaGroup(groups[i], isas, options, *executor).measure(peaks, observer);
    for (IsaCase& bench : groups[i]) bench.prepare = {};  // frees the inputs that its op shares
  }
  for (const auto& [key, peak] : peaks) {
    const auto& [isa, threads] = key;
    observer.note(fmt::format("multiply-add peak of {} with {} thread{}: {:.1f} GFLOP/s", name_of(isa), threads,
                              threads == 1 ? "" : "s", 1e-9 * peak));
  }
  std::vector<IsaRecord> records;
  for (std::vector<IsaCase>& group : groups) {
    fill_speeds(group, isas, peaks);
    for (IsaCase& bench : group) records.push_back(std::move(bench.record));
  }
  return records;
}

}  // namespace raffia::internal::bench
