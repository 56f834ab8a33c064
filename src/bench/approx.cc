#include "bench/approx.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/approx_data.h"
#include "bench/error.h"
#include "bench/table.h"
#include "core/message.h"
#include "estimators/registry.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "raffia/reference.h"
#include "raffia/threads.h"

namespace raffia::internal::bench {
namespace {

constexpr int64_t kLongestInDouble = 2048;  // tokens; the twin takes 2 s per head there
constexpr int64_t kLongestMatrix = 512;     // tokens; larger matrices are unreadable in a plot
constexpr size_t kMaxMatrices = 24;
constexpr double kLongWarmUp = 0.1;  // seconds; a run of this length needs no second one

using ApproxColumn = RecordColumn<ApproxRecord>;

std::string human_number(const Json& value) { return fmt::format("{:.3g}", value.get<double>()); }

const ApproxColumn kApproxColumns[] = {
    {"estimator", [](const ApproxRecord& r) { return json_of(r.estimator); }, Style::key},
    {"spec", [](const ApproxRecord& r) { return json_of(r.spec); }, Style::key},
    {"samples", [](const ApproxRecord& r) { return json_of(r.samples); }, Style::key},
    {"data", [](const ApproxRecord& r) { return json_of(r.data); }},
    {"scale", [](const ApproxRecord& r) { return json_of(r.scale); }},
    {"causal", [](const ApproxRecord& r) { return json_of(r.causal); }},
    {"target", [](const ApproxRecord& r) { return json_of(r.target); }},
    {"threads", [](const ApproxRecord& r) { return json_of(r.threads); }},
    {"batch", [](const ApproxRecord& r) { return json_of(r.batch); }},
    {"heads", [](const ApproxRecord& r) { return json_of(r.heads); }},
    {"kv_heads", [](const ApproxRecord& r) { return json_of(r.kv_heads); }},
    {"length", [](const ApproxRecord& r) { return json_of(r.length); }},
    {"head_dim", [](const ApproxRecord& r) { return json_of(r.head_dim); }},
    {"value_dim", [](const ApproxRecord& r) { return json_of(r.value_dim); }},
    {"seeds", [](const ApproxRecord& r) { return json_of(r.seeds); }},
    {"mse", [](const ApproxRecord& r) { return json_of(r.mse); }, Style::measured, human_number},
    {"mse_stderr", [](const ApproxRecord& r) { return json_of(r.mse_stderr); }, Style::measured, human_number},
    {"base_mse", [](const ApproxRecord& r) { return json_of(r.base_mse); }, Style::measured, human_number},
    {"max_abs_error", [](const ApproxRecord& r) { return json_of(r.max_abs_error); }, Style::measured, human_number},
    {"clamp_rate", [](const ApproxRecord& r) { return json_of(r.clamp_rate); }, Style::measured, human_number},
    {"seconds", [](const ApproxRecord& r) { return json_of(r.seconds); }, Style::measured,
     [](const Json& value) { return human_seconds(value.get<double>()); }},
    {"ratio_to_softmax", [](const ApproxRecord& r) { return json_of(r.ratio_to_softmax); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }},
};

// Every estimator with every number of samples; an estimator with samples=N keeps its own.
std::vector<Estimator> estimators_of(const ApproxOptions& options) {
  std::vector<std::string> specs = options.estimators;
  if (specs.empty()) specs = {options.causal ? "rfa:map=positive" : "rfa:log=true", "lara", "eva", "ra"};
  std::vector<Estimator> all;
  const auto add = [&all](const Estimator& estimator) {
    if (std::find(all.begin(), all.end(), estimator) == all.end()) all.push_back(estimator);
  };
  for (const std::string& spec : specs) {
    Estimator estimator = parse_estimator(spec);
    const EstimatorTraits traits = traits_of(estimator);
    if (options.causal ? !traits.causal : !traits.bidirectional) {
      throw OptionError(options.causal ? fmt::format("--causal: {} has no causal form", spec)
                                       : fmt::format("--estimators: {} is causal, expected --causal as well", spec));
    }
    if (estimator.samples || !traits.has_samples) {
      add(estimator);
      continue;
    }
    for (const int64_t samples : options.samples) {
      estimator.samples = samples;
      add(estimator);
    }
  }
  return all;
}

// Memory that views of an output need.
struct Output {
  explicit Output(const Extents<4>& output_shape)
      : shape(output_shape), values(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3])) {}

  MutView4 view() { return {values.data(), shape}; }

  Extents<4> shape;
  std::vector<float> values;
};

// Settings of the whole command.
struct Setting {
  const ApproxOptions& approx;
  Executor& executor;

  AttendOptions options() const {
    return {.causal = approx.causal, .run = {.threads = executor.concurrency(), .executor = &executor}};
  }
};

Extents<4> output_shape(const Qkv& qkv) { return {qkv.q_shape[0], qkv.q_shape[1], qkv.q_shape[2], qkv.v_shape[3]}; }

// q and k of unit length: the Gaussian kernel of unit vectors is exp(q . k - 1).
std::vector<float> unit_rows(const std::vector<float>& x, int64_t dim) {
  std::vector<float> unit(x.size());
  for (size_t begin = 0; begin < x.size(); begin += static_cast<size_t>(dim)) {
    double squares = 0;
    for (size_t i = begin; i < begin + static_cast<size_t>(dim); ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::max(std::sqrt(squares), 1e-6);
    for (size_t i = begin; i < begin + static_cast<size_t>(dim); ++i) unit[i] = static_cast<float>(scale * x[i]);
  }
  return unit;
}

// -log(1 - sigmoid(x)), without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

// Inputs of gated estimators besides q, k and v, since no model learned them: one gate g for all tokens, and a log scale that
// cancels the factor 1 - g of each fold, so that the folded past has the same weight as its keys.
struct Gates {
  Gates(const ApproxOptions& options, const Extents<4>& k_shape, int64_t heads)
      : shape{k_shape[0], k_shape[1], k_shape[2]},
        logits(static_cast<size_t>(shape[0] * shape[1] * shape[2]), static_cast<float>(options.gate_logit)),
        log_scale(static_cast<size_t>(heads), static_cast<float>(softplus(options.gate_logit))) {}

  void add_to(AttendInputs& inputs) const {
    inputs.gate_logits = {logits.data(), shape};
    inputs.log_scale = {log_scale.data(), {std::ssize(log_scale)}};
  }

  Extents<3> shape;
  std::vector<float> logits, log_scale;
};

// The exact attention to compare with: in double up to 2,048 tokens, with the exact op for longer sequences.
std::vector<double> exact_attention(const Qkv& qkv, const Setting& run) {
  const Extents<4> shape = output_shape(qkv);
  const bool is_gaussian = run.approx.target == Target::gaussian;
  std::vector<double> exact(static_cast<size_t>(shape[0] * shape[1] * shape[2] * shape[3]));
  if (qkv.q_shape[1] <= kLongestInDouble) {
    const int64_t heads = qkv.q_shape[2], group = heads / qkv.k_shape[2];
    const std::vector<float> sigma(static_cast<size_t>(qkv.k_shape[3]), 1.0F);
    const auto one_head = [&](int64_t index, int) {
      const int64_t b = index / heads, h = index % heads;
      const auto part = [b](const View4& view, int64_t head) { return view.slice(0, b, 1).slice(2, head, 1); };
      const View4 q = part(qkv.q_view(), h), k = part(qkv.k_view(), h / group), v = part(qkv.v_view(), h / group);
      const MutView4 out = MutView4(exact.data(), shape).slice(0, b, 1).slice(2, h, 1);
      if (is_gaussian) {
        reference::gaussian_attention(q, k, v, {sigma.data(), {1, qkv.k_shape[3]}}, out, {.causal = run.approx.causal});
      } else {
        reference::softmax_attention(q, k, v, out, {.causal = run.approx.causal});
      }
    };
    run.executor.run(shape[0] * heads, run.executor.concurrency(), one_head);
    return exact;
  }
  Output out(shape);
  SoftmaxOptions options{.causal = run.approx.causal, .run = {.executor = &run.executor}};
  if (is_gaussian) {
    options.scale = 1.0F;
    const std::vector<float> q = unit_rows(qkv.q, qkv.q_shape[3]), k = unit_rows(qkv.k, qkv.k_shape[3]);
    softmax_attention({q.data(), qkv.q_shape}, {k.data(), qkv.k_shape}, qkv.v_view(), out.view(), options);
  } else {
    softmax_attention(qkv.q_view(), qkv.k_view(), qkv.v_view(), out.view(), options);
  }
  std::copy(out.values.begin(), out.values.end(), exact.begin());
  return exact;
}

// Of predicting the mean of the values that a query sees.
double base_error(const Qkv& qkv, const std::vector<double>& exact, bool causal) {
  const auto [batch, length, heads, dim] = output_shape(qkv);
  const int64_t group = heads / qkv.k_shape[2];
  const View4 v = qkv.v_view();
  const View4 expected(exact.data(), output_shape(qkv));
  double sum = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t j = 0; j < dim; ++j) {
        double total = 0, seen = 0;
        for (int64_t t = 0; t < length; ++t) total += v(b, t, h / group, j);
        for (int64_t t = 0; t < length; ++t) {
          seen += v(b, t, h / group, j);
          const double mean = causal ? seen / static_cast<double>(t + 1) : total / static_cast<double>(length);
          const double error = mean - expected(b, t, h, j);
          sum += error * error;
        }
      }
    }
  }
  return sum / static_cast<double>(exact.size());
}

// One estimator on one data set, over all seeds.
struct ComparedEstimator {
  Estimator estimator;
  std::vector<double> errors = {};  // mean square, per seed
  double largest = 0;
  double seconds = std::numeric_limits<double>::infinity();
  Report report = {};

  void measure(const Qkv& qkv, const std::vector<double>& exact, uint64_t seed, const Setting& run);
};

void ComparedEstimator::measure(const Qkv& qkv, const std::vector<double>& exact, uint64_t seed, const Setting& run) {
  Estimator seeded = estimator;
  seeded.seed += seed;
  const Gates gates(run.approx, qkv.k_shape, qkv.q_shape[2]);
  AttendInputs inputs{.q = qkv.q_view(), .k = qkv.k_view(), .v = qkv.v_view()};
  gates.add_to(inputs);
  Output out(output_shape(qkv));
  const auto timed = [&] {
    const auto begin = std::chrono::steady_clock::now();
    const Report found = attend(seeded, inputs, out.view(), run.options());
    seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    return found;
  };
  const Report found = timed();
  if (errors.empty() && seconds < kLongWarmUp) timed();  // the first was a warm-up
  report.rows += found.rows;
  report.clamped += found.clamped;
  double sum = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(out.values[i]) - exact[i];
    sum += error * error;
    if (!std::isnan(largest) && !(std::abs(error) <= largest)) largest = std::abs(error);  // NaN is the largest
  }
  errors.push_back(sum / static_cast<double>(exact.size()));
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

std::optional<double> standard_error_of(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / (count - 1) / count);
}

// Work of one run, in query-key pairs: enough for a bar that moves evenly.
double work_of(const Estimator& estimator, bool causal, const Extents<4>& q_shape) {
  const auto rows = static_cast<double>(q_shape[0] * q_shape[1] * q_shape[2]);
  const TokenWork work = module_of(estimator).work(estimator, causal, q_shape[1]);
  const double features = traits_of(estimator).has_map ? 2 * static_cast<double>(estimator.samples.value_or(64)) : 0;
  return rows * (work.keys + work.drawn + features);
}

double work_of_exact(const Extents<4>& q_shape) {
  constexpr double kSlowerInDouble = 30;
  const auto pairs = static_cast<double>(q_shape[0] * q_shape[1] * q_shape[1] * q_shape[2]);
  return q_shape[1] <= kLongestInDouble ? kSlowerInDouble * pairs : pairs;
}

// A data set: what varies with the seed, and its name.
struct DataSource {
  std::string name;
  std::optional<double> scale;
  std::function<Qkv(uint64_t seed)> make;
  bool varies = true;      // with the seed
  std::string files = {};  // of --input, for messages
};

std::vector<DataSource> sources_of(const ApproxOptions& options) {
  if (!options.input.empty()) {
    const auto loaded = std::make_shared<const Qkv>(load(options.input, options.names));
    return {{.name = "input",
             .scale = {},
             .make = [loaded](uint64_t) { return *loaded; },
             .varies = false,
             .files = fmt::format("{}", fmt::join(options.input, ", "))}};
  }
  std::vector<DataSource> sources;
  for (const DataSet data : options.data) {
    for (const double scale : options.scales) {
      const int64_t length = options.length, dim = options.head_dim;
      sources.push_back({.name = std::string(name_in(kDataSets, data)), .scale = scale, .make = [=](uint64_t seed) {
                           return generate(data, scale, length, dim, seed);
                         }});
    }
  }
  return sources;
}

// Throws Error if numbers of the data are so large that a figure overflowed: JSON has only null for it.
void require_finite(const char* figure, const std::string& estimator, double value, const DataSource& source) {
  if (std::isfinite(value)) return;
  const std::string data = source.scale ? fmt::format("data {}, scale {}", source.name, *source.scale) : source.files;
  throw Error(fmt::format("{} of {} ({}) is {}, expected a finite number: queries, keys or values are too large for fp32", figure,
                          estimator, data, not_finite_text(value)));
}

// Contenders take turns within each seed. Softmax is always one of them: the ratios need it.
std::vector<ApproxRecord> measure(const DataSource& source, const std::vector<Estimator>& estimators, const Setting& run,
                                  Observer& observer) {
  const ApproxOptions& options = run.approx;
  std::vector<ComparedEstimator> contenders;
  for (const Estimator& estimator : estimators) contenders.push_back({.estimator = estimator});
  const Estimator exact_one;  // softmax
  const auto softmax = static_cast<size_t>(std::find(estimators.begin(), estimators.end(), exact_one) - estimators.begin());
  if (softmax == estimators.size()) contenders.push_back({.estimator = exact_one});
  observer.begin(source.scale ? fmt::format("{} {}", source.name, *source.scale) : source.name);

  std::vector<double> bases;
  Qkv qkv;
  std::vector<double> exact;
  for (uint64_t i = 0; i < static_cast<uint64_t>(options.seeds); ++i) {
    if (i == 0 || source.varies) {
      qkv = source.make(options.seed + i);
      exact = exact_attention(qkv, run);
      bases.push_back(base_error(qkv, exact, options.causal));
      observer.advance(work_of_exact(qkv.q_shape));
    }
    for (ComparedEstimator& contender : contenders) {
      contender.measure(qkv, exact, options.seed + i, run);
      observer.advance(work_of(contender.estimator, run.approx.causal, qkv.q_shape));
    }
  }

  std::vector<ApproxRecord> records;
  for (size_t i = 0; i < estimators.size(); ++i) {
    const ComparedEstimator& contender = contenders[i];
    ApproxRecord record{.estimator = std::string(name_of(contender.estimator.kind)),
                        .spec = to_string(contender.estimator),
                        .samples = contender.estimator.samples,
                        .data = source.name,
                        .scale = source.scale,
                        .causal = options.causal,
                        .target = std::string(name_in(kTargets, options.target)),
                        .threads = run.executor.concurrency(),
                        .batch = qkv.q_shape[0],
                        .heads = qkv.q_shape[2],
                        .kv_heads = qkv.k_shape[2],
                        .length = qkv.q_shape[1],
                        .head_dim = qkv.q_shape[3],
                        .value_dim = qkv.v_shape[3],
                        .seeds = options.seeds,
                        .mse = mean_of(contender.errors),
                        .mse_stderr = standard_error_of(contender.errors),
                        .base_mse = mean_of(bases),
                        .max_abs_error = contender.largest,
                        .seconds = contender.seconds,
                        .ratio_to_softmax = contenders[softmax].seconds / contender.seconds};
    if (contender.report.rows > 0) record.clamp_rate = contender.report.clamp_rate();
    require_finite("base_mse", "exact attention", record.base_mse, source);
    require_finite("mse", record.spec, record.mse, source);
    require_finite("max_abs_error", record.spec, record.max_abs_error, source);
    if (record.mse_stderr) require_finite("mse_stderr", record.spec, *record.mse_stderr, source);
    records.push_back(std::move(record));
  }
  return records;
}

// Attention with the identity as values gives the attention matrix. Only the first head of the first sequence.
std::vector<AttentionMatrix> matrices_of(const DataSource& source, const std::vector<Estimator>& estimators, const Setting& run) {
  const Qkv whole = source.make(run.approx.seed);
  const auto [batch, length, heads, dim] = whole.q_shape;
  std::vector<float> identity(static_cast<size_t>(length * length));
  for (int64_t i = 0; i < length; ++i) identity[static_cast<size_t>(i * length + i)] = 1;
  const Extents<4> square{1, length, 1, length};
  const auto first_head = [](const View4& view) { return view.slice(0, 0, 1).slice(2, 0, 1); };
  AttendInputs inputs{.q = first_head(whole.q_view()), .k = first_head(whole.k_view()), .v = {identity.data(), square}};
  const Gates gates(run.approx, {1, length, 1, dim}, 1);
  gates.add_to(inputs);
  Qkv one{.q_shape = {1, length, 1, dim}, .k_shape = {1, length, 1, dim}, .v_shape = square, .v = identity};
  const auto copy_rows = [length = length, dim = dim](const View4& view, std::vector<float>& rows) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t j = 0; j < dim; ++j) rows.push_back(static_cast<float>(view(0, t, 0, j)));
    }
  };
  copy_rows(inputs.q, one.q);
  copy_rows(inputs.k, one.k);
  const std::vector<double> exact = exact_attention(one, run);
  std::vector<AttentionMatrix> matrices = {{.title = fmt::format("exact {}", name_in(kTargets, run.approx.target)),
                                            .length = length,
                                            .weights = std::vector<float>(exact.begin(), exact.end())}};
  for (const Estimator& estimator : estimators) {
    Estimator seeded = estimator;
    seeded.seed += run.approx.seed;
    Output out(square);
    attend(seeded, inputs, out.view(), run.options());
    matrices.push_back({.title = to_string(estimator), .length = length, .weights = std::move(out.values)});
  }
  return matrices;
}

void check_matrices(const ApproxOptions& options, const std::vector<DataSource>& sources,
                    const std::vector<Estimator>& estimators) {
  const int64_t length = options.input.empty() ? options.length : sources.front().make(0).q_shape[1];
  if (length > kLongestMatrix) {
    throw OptionError(fmt::format("--show-matrix: {} tokens, expected at most {} (see --length)", length, kLongestMatrix));
  }
  if (estimators.size() + 1 > kMaxMatrices) {
    throw OptionError(
        fmt::format("--show-matrix: {} matrices, expected at most {} (see --samples)", estimators.size() + 1, kMaxMatrices));
  }
}

double total_work(const ApproxOptions& options, const std::vector<DataSource>& sources,
                  const std::vector<Estimator>& estimators) {
  const Extents<4> shape =
      options.input.empty() ? Extents<4>{1, options.length, 1, options.head_dim} : sources.front().make(0).q_shape;
  double work = work_of({}, options.causal, shape);  // softmax
  for (const Estimator& estimator : estimators) work += work_of(estimator, options.causal, shape);
  const auto seeds = static_cast<double>(options.seeds);
  return static_cast<double>(sources.size()) * (seeds * work + (options.input.empty() ? seeds : 1) * work_of_exact(shape));
}

}  // namespace

ApproxResults measure_approx(const ApproxOptions& options, Observer& observer) {
  if (options.input.size() != 0 && options.input.size() != 1 && options.input.size() != 3) {
    throw OptionError(
        fmt::format("--input: {} files, expected three .npy files (q, k, v) or one .safetensors file", options.input.size()));
  }
  if (options.names.size() != 3) {
    throw OptionError(fmt::format("--names: {} names, expected three (for q, k, v)", options.names.size()));
  }
  const std::vector<Estimator> estimators = estimators_of(options);
  const std::vector<DataSource> sources = sources_of(options);
  if (options.matrices) check_matrices(options, sources, estimators);

  const int all = default_executor().concurrency();
  const std::unique_ptr<Executor> executor = make_thread_pool(options.threads > 0 ? static_cast<int>(options.threads) : all);
  const Setting context{options, *executor};
  observer.start(total_work(options, sources, estimators));
  const bool has_trig = std::any_of(estimators.begin(), estimators.end(), [](const Estimator& e) {
    const EstimatorTraits traits = traits_of(e);
    return traits.has_map && !traits.is_gated && e.map == MapKind::trig;
  });
  if (has_trig && options.target == Target::softmax) {
    observer.note(
        "rfa with map trig estimates the Gaussian kernel of unit vectors: compare it with --target gaussian, or use "
        "rfa:map=positive");
  }
  ApproxResults results;
  for (const DataSource& source : sources) {
    for (ApproxRecord& record : measure(source, estimators, context, observer)) results.records.push_back(std::move(record));
  }
  if (options.matrices) results.matrices = matrices_of(sources.front(), estimators, context);
  return results;
}

void print_records(std::span<const ApproxRecord> records, Format format, std::ostream& out) {
  print_table(kApproxColumns, records, format, out);
}

}  // namespace raffia::internal::bench
