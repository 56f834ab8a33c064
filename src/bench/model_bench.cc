#include "bench/model_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "bench/interleave.h"
#include "bench/machine.h"
#include "bench/machine_probe.h"
#include "bench/table.h"
#include "model/plan.h"
#include "raffia/isa.h"
#include "raffia/random.h"
#include "raffia/session.h"
#include "runtime/session_at_depth.h"

namespace raffia::internal::bench {
namespace {

const RecordColumn<ModelRecord> kModelColumns[] = {
    {"test", [](const ModelRecord& r) { return json_of(r.test); }, Style::key},
    {"op", [](const ModelRecord& r) { return json_of(r.op); }, Style::key},
    {"model", [](const ModelRecord& r) { return json_of(r.model); }},
    {"type", [](const ModelRecord& r) { return json_of(r.type); }},
    {"batch", [](const ModelRecord& r) { return json_of(r.batch); }},
    {"depth", [](const ModelRecord& r) { return json_of(r.depth); }},
    {"threads", [](const ModelRecord& r) { return json_of(r.threads); }},
    {"isa", [](const ModelRecord& r) { return json_of(r.isa); }},
    {"layers", [](const ModelRecord& r) { return json_of(r.layers); }},
    {"width", [](const ModelRecord& r) { return json_of(r.width); }},
    {"heads", [](const ModelRecord& r) { return json_of(r.heads); }},
    {"vocabulary", [](const ModelRecord& r) { return json_of(r.vocabulary); }},
    {"parameters", [](const ModelRecord& r) { return json_of(r.parameters); }},
    {"seconds", [](const ModelRecord& r) { return json_of(r.seconds); }, Style::measured, human_time},
    {"tokens_per_second", [](const ModelRecord& r) { return json_of(r.tokens_per_second); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.1f}", value.get<double>()); }},
    {"ratio_to_softmax", [](const ModelRecord& r) { return json_of(r.ratio_to_softmax); }, Style::measured, human_ratio},
    {"state_bytes", [](const ModelRecord& r) { return json_of(r.state_bytes); }, Style::measured, human_bytes},
    {"weight_bytes", [](const ModelRecord& r) { return json_of(r.weight_bytes); }, Style::shared, human_bytes},
    {"weight_gbps", [](const ModelRecord& r) { return json_of(r.weight_gbps); }, Style::measured, human_ratio},
    {"bandwidth_gbps", [](const ModelRecord& r) { return json_of(r.bandwidth_gbps); }, Style::measured, human_ratio},
    {"bandwidth_fraction", [](const ModelRecord& r) { return json_of(r.bandwidth_fraction); }, Style::measured, human_percent},
    {"product_gflops", [](const ModelRecord& r) { return json_of(r.product_gflops); }, Style::measured, human_ratio},
    {"peak_gflops", [](const ModelRecord& r) { return json_of(r.peak_gflops); }, Style::measured, human_ratio},
    {"peak_fraction", [](const ModelRecord& r) { return json_of(r.peak_fraction); }, Style::measured, human_percent},
    {"peak_rss_bytes", [](const ModelRecord& r) { return json_of(r.peak_rss_bytes); }, Style::measured, human_bytes},
};

std::vector<int32_t> random_ids(int64_t vocabulary, int64_t count) {
  RandomStream random({.seed = 1});
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random.next_u32() % static_cast<uint32_t>(vocabulary));
  return ids;
}

// One model in one test: makes its sessions, and runs the test again and again.
class Trial {
 public:
  Trial(std::shared_ptr<const Model> model, const ModelTest& test)
      : model_(std::move(model)), test_(test), ids_(random_ids(model_->config().vocabulary, test.tokens)) {
    if (test.kind == ModelTest::Kind::prefill) return;
    // A snapshot at the depth, and no other: a run may go back to it.
    const SessionOptions options{.snapshot_every = test.depth + 2 * test.tokens + 1, .snapshots = 1};
    sessions_.push_back(runtime::session_at_depth(model_, test.depth, options));
    while (std::ssize(sessions_) < test.batch) sessions_.push_back(sessions_.front());
    for (Session& session : sessions_) pointers_.push_back(&session);
    state_bytes_ = sessions_.front().state_bytes();
  }

  void run(const RunOptions& options) {
    if (test_.kind == ModelTest::Kind::prefill) {
      Session session(model_, {.run = options});
      session.prefill(ids_);
      state_bytes_ = session.state_bytes();
      return;
    }
    for (const int32_t id : ids_) {
      const std::vector<int32_t> same(pointers_.size(), id);
      Session::step(pointers_, same, options);
    }
    for (Session& session : sessions_) session.rollback(test_.tokens);
  }

  size_t state_bytes() const { return state_bytes_; }

 private:
  std::shared_ptr<const Model> model_;
  ModelTest test_;
  std::vector<int32_t> ids_;
  std::vector<Session> sessions_;
  std::vector<Session*> pointers_;
  size_t state_bytes_ = 0;
};

// Roughly proportional to the time of one run.
double work_of(const BenchModel& model, const ModelTest& test) {
  const auto parameters = static_cast<double>(12 * model.config.width * model.config.width * model.config.layers +
                                              model.config.width * model.config.vocabulary);
  const bool is_decode = test.kind == ModelTest::Kind::decode;
  const auto seen = static_cast<double>(model.state_bytes_at(is_decode ? test.depth : test.tokens / 2)) / sizeof(float);
  // A single token waits for the weights; many tokens share one pass.
  const double weights_per_token = is_decode && test.batch == 1 ? parameters : parameters / 4;
  return static_cast<double>(test.batch * test.tokens) * (weights_per_token + seen);
}

// 10^9 bytes that the sessions of a test remember.
double remembered(const BenchModel& model, const ModelTest& test) {
  const int64_t depth = test.kind == ModelTest::Kind::decode ? test.depth : test.tokens;
  return 1e-9 * static_cast<double>(model.state_bytes_at(depth) * test.batch);
}

bool fits(const BenchModel& model, const ModelTest& test, const ModelBenchOptions& options) {
  return remembered(model, test) <= static_cast<double>(options.cache_limit);
}

// What one group of models remembers of the memory pass: [model][test].
using PeakMemory = std::vector<std::vector<std::optional<int64_t>>>;

// One run of each case in a child process. The result is accurate only while this process is small and has no threads.
PeakMemory measure_memory(std::vector<BenchModel>& models, const std::vector<ModelTest>& tests, const ModelBenchOptions& options,
                          Observer& observer) {
  const auto threads = static_cast<int>(*std::max_element(options.threads.begin(), options.threads.end()));
  PeakMemory peaks;
  for (BenchModel& model : models) {
    model.prepare();
    auto& of_model = peaks.emplace_back();
    for (const ModelTest& test : tests) {
      observer.begin(fmt::format("memory of {} in {}", model.op, test.name()));
      of_model.push_back(!fits(model, test, options) ? std::nullopt : peak_rss_of([&model, &test, threads] {
        const std::unique_ptr<Executor> executor = make_thread_pool(threads);
        ModelTest once = test;
        // One token is enough where only the sessions count.
        if (test.kind == ModelTest::Kind::decode) once.tokens = 1;
        Trial(model.make(), once).run({.threads = threads, .executor = executor.get()});
      }));
      observer.advance(work_of(model, test));
    }
    std::vector<std::byte>().swap(model.weights);  // gives its pages back, too
  }
  return peaks;
}

ModelRecord described_run(const BenchModel& bench, const Model& model, const ModelTest& test, int64_t threads) {
  const ModelConfig& config = model.config();
  return {.test = test.name(),
          .op = bench.op,
          .model = bench.name,
          .type = std::string(model.weight_type()),
          .batch = test.batch,
          .depth = test.depth,
          .threads = threads,
          .isa = std::string(name_of(active_isa())),
          .layers = config.layers,
          .width = config.width,
          .heads = config.heads,
          .vocabulary = config.vocabulary,
          .parameters = model.parameters(),
          .weight_bytes = static_cast<int64_t>(model.weight_bytes())};
}

// What a step reads of the weights: all of them, but one row of embeddings where the logits have a matrix of their own.
double bytes_per_step(const Model& model) {
  const ModelConfig& config = model.config();
  const auto all = static_cast<double>(model.weight_bytes());
  if (config.tied) return all;
  const auto embedding = static_cast<double>(config.vocabulary * config.width);
  return all * (1 - embedding / static_cast<double>(model.parameters()));
}

// FLOP of the products of one token of a prompt with the matrices of all layers. Embeddings are looked up, and logits computed
// for the last token alone.
double product_flops(const Model& model) {
  const ModelPlan plan = plan_of(model.config());
  double flops = 0;
  for (const LayerPlan& layer : plan.decoder->layers) {
    const AttentionPlan& attention = layer.attention;
    for (const LinearLayerPlan* product :
         {&attention.q, &attention.k, &attention.v, &attention.out, &layer.ffn_up, &layer.ffn_down}) {
      flops += 2 * static_cast<double>(product->weight.count());
    }
    if (attention.gate) flops += 2 * static_cast<double>(attention.gate->weight.count());
    if (layer.ffn_gate) flops += 2 * static_cast<double>(layer.ffn_gate->weight.count());
  }
  return flops;
}

bool is_read_bound(const ModelTest& test) { return test.kind == ModelTest::Kind::decode && test.batch == 1; }
bool is_prefill(const ModelTest& test) { return test.kind == ModelTest::Kind::prefill; }

// What the machine can do at most: it takes turns with the models, and is compared with them.
class Limits {
 public:
  Limits(const std::vector<int64_t>& threads, Executor& executor) : threads_(threads), executor_(executor) {}

  // Adds contenders for the limits of these tests.
  void add(std::span<const ModelTest> tests, std::vector<Contender>& contenders) {
    first_read_ = contenders.size();
    if (std::ranges::any_of(tests, is_read_bound)) {
      if (bytes_.empty()) bytes_.assign(size_t{256} << 20, std::byte{1});  // far more than any cache holds
      for (const int64_t threads : threads_) {
        contenders.push_back({.run = [this, threads] { read_bytes(bytes_, executor_, static_cast<int>(threads)); }});
      }
    }
    first_peak_ = contenders.size();
    if (std::ranges::any_of(tests, is_prefill)) {
      for (const int64_t threads : threads_) {
        contenders.push_back(
            {.run = [this, threads] { flops_ = run_multiply_adds(executor_, static_cast<int>(threads)) / threads; }});
      }
    }
  }

  // Fills in what `record`, whose time is known, reaches of them.
  void compare(const Model& model, const ModelTest& test, std::span<const Contender> contenders, ModelRecord& record) const {
    const auto place = static_cast<size_t>(std::ranges::find(threads_, record.threads) - threads_.begin());
    if (is_read_bound(test)) {
      record.bandwidth_gbps = 1e-9 * static_cast<double>(bytes_.size()) / contenders[first_read_ + place].seconds;
      record.weight_gbps = 1e-9 * bytes_per_step(model) * static_cast<double>(test.tokens) / record.seconds;
      record.bandwidth_fraction = *record.weight_gbps / *record.bandwidth_gbps;
    }
    if (is_prefill(test)) {
      record.peak_gflops = 1e-9 * flops_ * static_cast<double>(record.threads) / contenders[first_peak_ + place].seconds;
      record.product_gflops = 1e-9 * product_flops(model) * static_cast<double>(test.tokens) / record.seconds;
      record.peak_fraction = *record.product_gflops / *record.peak_gflops;
    }
  }

 private:
  const std::vector<int64_t>& threads_;
  Executor& executor_;
  std::vector<std::byte> bytes_;
  double flops_ = 0;  // multiply-adds of one thread in a turn
  size_t first_read_ = 0, first_peak_ = 0;
};

class TimePass {
 public:
  TimePass(const ModelBenchOptions& options, Executor& executor, Observer& observer)
      : options_(options), executor_(executor), observer_(observer), limits_(options.threads, executor) {}

  std::vector<ModelRecord> run(std::vector<BenchModel>& benches, const std::vector<ModelTest>& tests, const PeakMemory& peaks) {
    std::vector<ModelRecord> records;
    std::vector<std::shared_ptr<const Model>> models;
    for (BenchModel& bench : benches) models.push_back(bench.make());
    for (size_t begin = 0, end = 0; begin < tests.size(); begin = end) {
      // Tests take turns too, as many as memory has room for.
      double total = 0;
      do {
        for (const BenchModel& bench : benches) total += fits(bench, tests[end], options_) ? remembered(bench, tests[end]) : 0;
        if (end > begin && total > static_cast<double>(options_.cache_limit)) break;
        ++end;
      } while (end < tests.size());
      const std::string others = end - begin > 1 ? fmt::format(" to {}", tests[end - 1].name()) : "";
      observer_.begin(fmt::format("time of {}{}, {} weights", tests[begin].name(), others, models.front()->weight_type()));
      for (ModelRecord& record : run_tests(benches, models, std::span(tests).subspan(begin, end - begin), peaks, begin)) {
        records.push_back(std::move(record));
      }
    }
    return records;
  }

 private:
  // `first` is the number of the first test among all.
  std::vector<ModelRecord> run_tests(const std::vector<BenchModel>& benches,
                                     const std::vector<std::shared_ptr<const Model>>& models, std::span<const ModelTest> tests,
                                     const PeakMemory& peaks, size_t first) {
    struct Case {
      const Model* model;
      const ModelTest* test;
      const Trial* trial;
      ModelRecord record;
    };
    std::vector<std::unique_ptr<Trial>> trials;
    std::vector<Case> cases;
    std::vector<Contender> contenders;
    for (size_t t = 0; t < tests.size(); ++t) {
      const ModelTest& test = tests[t];
      for (size_t m = 0; m < benches.size(); ++m) {
        if (!fits(benches[m], test, options_)) continue;
        Trial* trial = trials.emplace_back(std::make_unique<Trial>(models[m], test)).get();
        for (const int64_t threads : options_.threads) {
          cases.push_back({models[m].get(), &test, trial, described_run(benches[m], *models[m], test, threads)});
          cases.back().record.peak_rss_bytes = peaks[m][first + t];
          contenders.push_back({.run = [trial, run = on(threads)] { trial->run(run); }, .work = work_of(benches[m], test)});
        }
      }
    }
    limits_.add(tests, contenders);
    interleave(contenders, static_cast<int>(options_.repeats), observer_);

    for (size_t c = 0; c < cases.size(); ++c) {
      const ModelTest& test = *cases[c].test;
      ModelRecord& record = cases[c].record;
      record.seconds = contenders[c].seconds;
      record.tokens_per_second = static_cast<double>(test.batch * test.tokens) / record.seconds;
      record.state_bytes = static_cast<int64_t>(cases[c].trial->state_bytes());
      limits_.compare(*cases[c].model, test, contenders, record);
    }
    std::vector<ModelRecord> records;
    for (const Case& one : cases) {
      records.push_back(one.record);
      for (const Case& other : cases) {
        if (other.test != one.test || other.record.op != "softmax" || other.record.threads != one.record.threads) continue;
        records.back().ratio_to_softmax = other.record.seconds / one.record.seconds;
      }
    }
    return records;
  }

  RunOptions on(int64_t threads) const { return {.threads = static_cast<int>(threads), .executor = &executor_}; }

  const ModelBenchOptions& options_;
  Executor& executor_;
  Observer& observer_;
  Limits limits_;
};

}  // namespace

std::string ModelTest::name() const {
  return kind == Kind::prefill ? fmt::format("pp{}", tokens) : fmt::format("tg{} @ d{}", tokens, depth);
}

std::vector<ModelRecord> measure_models(const std::vector<ModelTest>& tests, const ModelBenchOptions& options,
                                        Observer& observer) {
  std::vector<std::vector<BenchModel>> groups = models_of(options.models);
  double work = 0;
  for (const auto& group : groups) {
    for (const BenchModel& model : group) {
      for (const ModelTest& test : tests) {
        if (!fits(model, test, options)) continue;
        work += work_of(model, test) * static_cast<double>(1 + (options.repeats + 1) * std::ssize(options.threads));
      }
    }
  }
  std::vector<ModelRecord> records;
  observer.start(work);
  for (const ModelTest& test : tests) {
    for (const BenchModel& model : groups.front()) {
      if (fits(model, test, options)) continue;
      observer.note(fmt::format("{} is skipped in {}, batch {}: the memory of its sessions exceeds --cache-limit {} GB", model.op,
                                test.name(), test.batch, options.cache_limit));
    }
  }
  std::vector<PeakMemory> peaks;
  for (auto& group : groups) peaks.push_back(measure_memory(group, tests, options, observer));
  const auto max_threads = *std::max_element(options.threads.begin(), options.threads.end());
  const std::unique_ptr<Executor> executor = make_thread_pool(static_cast<int>(max_threads));
  TimePass pass(options, *executor, observer);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (ModelRecord& record : pass.run(groups[g], tests, peaks[g])) records.push_back(std::move(record));
  }
  return records;
}

void print_records(std::span<const ModelRecord> records, Format format, std::ostream& out) {
  print_table(kModelColumns, records, format, out);
}

}  // namespace raffia::internal::bench
