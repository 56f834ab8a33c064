#include "runtime/attention.h"

#include <algorithm>

#include "core/check.h"
#include "core/state_size.h"
#include "core/window_layout.h"
#include "estimators/estimator_options.h"
#include "kernels/layer_ops.h"
#include "raffia/error.h"
#include "runtime/products.h"

namespace raffia::runtime {
namespace {

constexpr float kHeadNormEpsilon = 1e-6F;  // docs/model-format.md

std::optional<FeatureMap> read_map(const ModelConfig& config, const Estimator& estimator, WeightReader& weights,
                                   const std::string& prefix) {
  const EstimatorKind kind = estimator.kind;
  const bool has_map =
      kind == EstimatorKind::rfa_gate || kind == EstimatorKind::hybrid || (kind == EstimatorKind::rfa && !estimator.log);
  if (!has_map) return std::nullopt;
  const int64_t heads = config.key_heads(), dim = config.head_dim(), rows = estimator.samples.value_or(64);
  switch (estimator.map) {
    case MapKind::identity:
      return FeatureMap::identity(dim, heads);
    case MapKind::elu:
      return FeatureMap::elu(dim, heads);
    case MapKind::relu: {
      const std::vector<float> weight = weights.floats(prefix + ".weight", {heads, rows, dim});
      const std::vector<float> bias = weights.floats(prefix + ".bias", {heads, rows});
      return FeatureMap::relu({weight.data(), {heads, rows, dim}}, {bias.data(), {heads, rows}});
    }
    case MapKind::trig:
    case MapKind::arccos:
    case MapKind::positive:
    case MapKind::positive2: {
      const std::vector<float> draws = weights.floats(prefix + ".draws", {heads, rows, dim});
      FeatureMap map = FeatureMap::with_draws(estimator.map, {draws.data(), {heads, rows, dim}});
      if (config.learned_sigma) map.set_sigma(weights.floats(prefix + ".sigma", {heads, dim}));
      return map;
    }
  }
  return std::nullopt;
}

// [rows, heads, dim] as one batch entry, [1, rows, heads, dim].
template <class AnyView>
auto as_sequence(const AnyView& x) {
  using View = std::conditional_t<std::is_same_v<AnyView, MutView3>, MutView4, View4>;
  return View(x.data(), x.dtype(), {1, x.extent(0), x.extent(1), x.extent(2)}, {0, x.stride(0), x.stride(1), x.stride(2)});
}

// [rows, heads, dim] as one token of `rows` sessions, [rows, 1, heads, dim].
template <class AnyView>
auto as_tokens(const AnyView& x) {
  using View = std::conditional_t<std::is_same_v<AnyView, MutView3>, MutView4, View4>;
  return View(x.data(), x.dtype(), {x.extent(0), 1, x.extent(1), x.extent(2)}, {x.stride(0), 0, x.stride(1), x.stride(2)});
}

// The options of an op, on the threads of the turn.
template <class Options>
Options on(const Turn& turn, Options options) {
  options.threads = turn.run.threads;
  options.executor = turn.run.executor;
  return options;
}

// The memories of all sessions of a turn, of one kind.
template <class Kind>
std::vector<Kind*> pasts(const Turn& turn, size_t index) {
  std::vector<Kind*> found;
  for (Memory* session : turn.sessions) found.push_back(&std::get<Kind>((*session)[index].past));
  return found;
}

}  // namespace

Heads::Heads(const ModelConfig& config, const Estimator& estimator, WeightReader& weights, const std::string& prefix)
    : estimator_(estimator), heads_(config.heads), key_heads_(config.key_heads()), dim_(config.head_dim()) {
  q_ = weights.linear(prefix + ".q_proj", width(), width(), config.bias);
  k_ = weights.linear(prefix + ".k_proj", key_width(), width(), config.bias);
  v_ = weights.linear(prefix + ".v_proj", key_width(), width(), config.bias);
  out_ = weights.linear(prefix + ".out_proj", width(), width(), config.bias);
  if (config.head_norm) head_norm_ = weights.floats(prefix + ".head_norm", {heads_, dim_});
  map_ = read_map(config, estimator, weights, prefix + ".map");
}

void Heads::answer(float* read, const Turn& turn, float* out) const {
  if (!head_norm_.empty()) {
    for_rows(turn, turn.rows, [&](int64_t begin, int64_t end) {
      const MutView3 heads(read + begin * width(), {end - begin, heads_, dim_});
      head_norm(heads, head_norm_, kHeadNormEpsilon, heads);
    });
  }
  multiply({{&out_, read, width(), out, width()}}, turn);
}

void Heads::attend_both_ways(View4 q, View4 k, View4 v, const Turn& turn, MutView4 out) const {
  switch (estimator_.kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
      return softmax_attention(q, k, v, out, on(turn, softmax_options(estimator_, false)));
    case EstimatorKind::rfa:
      if (estimator_.log) return lara_attention(q, k, v, out, on(turn, lara_options(estimator_)));
      rfa_attention(q, k, v, *map_, out, on(turn, AttentionOptions{}));
      return;
    case EstimatorKind::lara:
      return lara_attention(q, k, v, out, on(turn, lara_options(estimator_)));
    case EstimatorKind::eva:
      return eva_attention(q, k, v, out, on(turn, eva_options(estimator_)));
    case EstimatorKind::ra:
      return ra_attention(q, k, v, out, on(turn, ra_options(estimator_, false)));
    case EstimatorKind::rfa_gate:
    case EstimatorKind::hybrid:
      break;  // ModelConfig::check rejects these for bidirectional attention
  }
  throw InvalidArgument("attention: " + to_string(estimator_) + " is causal, expected a bidirectional estimator");
}

SelfAttention::SelfAttention(const ModelConfig& config, const Estimator& estimator, bool causal, WeightReader& weights,
                             const std::string& prefix)
    : Heads(config, estimator, weights, prefix), conv_(causal ? config.conv : 0) {
  if (config.positions == Positions::rotary && config.task != Task::image) rotary_.emplace(dim_, config.rotary_base);
  if (estimator.kind == EstimatorKind::rfa_gate || estimator.kind == EstimatorKind::hybrid) {
    gate_ = weights.linear(prefix + ".gate", key_heads_, width(), true);
  }
  if (estimator.kind == EstimatorKind::hybrid) log_scale_ = weights.floats(prefix + ".log_scale", {heads_});
  if (conv_ > 0) {
    // Stored by column; read tap by tap.
    const int64_t total = width() + 2 * key_width();
    taps_.resize(static_cast<size_t>(conv_ * total));
    int64_t column = 0;
    for (const auto& [name, columns] : {std::pair{".conv_q", width()}, {".conv_k", key_width()}, {".conv_v", key_width()}}) {
      const std::vector<float> stored = weights.floats(prefix + name, {columns, conv_});
      for (int64_t c = 0; c < columns; ++c, ++column) {
        for (int64_t j = 0; j < conv_; ++j) {
          taps_[static_cast<size_t>(j * total + column)] = stored[static_cast<size_t>(c * conv_ + j)];
        }
      }
    }
  }
}

std::variant<StateShape, WindowStateShape, SelfAttention::ExactKeys> SelfAttention::past_shape() const {
  switch (estimator_.kind) {
    case EstimatorKind::rfa:
    case EstimatorKind::rfa_gate:
      return StateShape{.batch = 1, .heads = map_->heads(), .features = map_->features(), .value_dim = dim_};
    case EstimatorKind::hybrid:
      return hybrid_state_shape(1, key_heads_, dim_, dim_, *map_, rotary_.has_value(), hybrid_options(estimator_));
    case EstimatorKind::lara:
      return causal_lara_state_shape(1, heads_, key_heads_, dim_, dim_, causal_lara_options(estimator_));
    case EstimatorKind::eva:
      return causal_eva_state_shape(1, heads_, key_heads_, dim_, dim_, causal_eva_options(estimator_));
    default:
      return ExactKeys{};
  }
}

size_t SelfAttention::tail_size() const { return static_cast<size_t>(conv_ > 0 ? (conv_ - 1) * (width() + 2 * key_width()) : 0); }

AttentionMemory SelfAttention::empty_memory() const {
  AttentionMemory memory{.past = KeyCache(key_heads_, dim_, estimator_.kind != EstimatorKind::window),
                         .tail = std::vector<float>(tail_size())};
  const auto shape = past_shape();
  if (const auto* state = std::get_if<StateShape>(&shape)) memory.past = State(*state);
  if (const auto* window = std::get_if<WindowStateShape>(&shape)) memory.past = WindowState(*window);
  return memory;
}

std::optional<uint64_t> SelfAttention::memory_bytes(int64_t position) const {
  const auto shape = past_shape();
  constexpr int64_t kFloat = sizeof(float);
  std::optional<int64_t> past;
  if (const auto* state = std::get_if<StateShape>(&shape)) {
    past = bytes_of(*state);
  } else if (const auto* window = std::get_if<WindowStateShape>(&shape)) {
    const auto layout = layout_of(*window);
    if (layout) past = static_cast<int64_t>(layout->entry) * kFloat;
  } else {
    past = checked_product({2, cached_rows(position), key_width(), kFloat});
  }
  if (!past) return {};
  return static_cast<uint64_t>(*past) + tail_size() * kFloat;
}

void SelfAttention::convolve(const Turn& turn, size_t index, Workspace& work) const {
  const int64_t columns = width() + 2 * key_width();
  const float* from = work.qkv.of(turn.rows * columns);
  float* to = work.mixed.of(turn.rows * columns);
  const bool is_step = turn.form == Turn::Form::step;
  // A step has one row of each session; a sequence all rows of one.
  const int64_t sequences = is_step ? turn.rows : 1, rows = is_step ? 1 : turn.rows;
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<float>& tail = (*turn.sessions[static_cast<size_t>(s)])[index].tail;
    short_convolution(View2(from + s * columns, {rows, columns}), View2(taps_.data(), {conv_, columns}),
                      MutView2(tail.data(), {conv_ - 1, columns}), MutView2(to + s * columns, {rows, columns}));
  }
}

void SelfAttention::forward(const float* x, const Turn& turn, size_t index, Workspace& work, float* out) const {
  const int64_t rows = turn.rows, columns = width() + 2 * key_width();
  float* qkv = work.qkv.of(rows * columns);
  float* gates = gate_.weight.rows > 0 ? work.gates.of(rows * key_heads_) : nullptr;
  {
    std::vector<Product> products = {{&q_, x, width(), qkv, columns},
                                     {&k_, x, width(), qkv + width(), columns},
                                     {&v_, x, width(), qkv + width() + key_width(), columns}};
    if (gates != nullptr) products.push_back({&gate_, x, width(), gates, key_heads_});
    multiply(products, turn);
  }
  if (conv_ > 0) {
    convolve(turn, index, work);
    std::swap(work.qkv, work.mixed);
    qkv = work.qkv.of(rows * columns);
  }
  const auto heads_at = [&](float* at, int64_t heads) { return MutView3(at, {rows, heads, dim_}, {columns, dim_, 1}); };
  Inputs in{.q = heads_at(qkv, heads_),
            .k = heads_at(qkv + width(), key_heads_),
            .v = heads_at(qkv + width() + key_width(), key_heads_),
            .gates = gates == nullptr ? View2() : View2(gates, {rows, key_heads_}),
            .q_far = {},
            .k_far = {},
            .out = MutView3(work.read.of(rows * width()), {rows, heads_, dim_})};
  if (rotary_) {
    float* turned = qkv;
    if (estimator_.kind == EstimatorKind::hybrid) {
      // The folded part reads queries and keys as they were.
      turned = work.mixed.of(rows * columns);
      for_rows(turn, rows, [&](int64_t begin, int64_t end) {
        std::copy(qkv + begin * columns, qkv + end * columns, turned + begin * columns);
      });
      in.q_far = in.q;
      in.k_far = in.k;
      in.q = heads_at(turned, heads_);
      in.k = heads_at(turned + width(), key_heads_);
    }
    float* turns = work.turns.of(rows * dim_);
    for_rows(turn, rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        rotary_->fill(turn.positions[static_cast<size_t>(r)], {turns + r * dim_, static_cast<size_t>(dim_)});
      }
      // Heads of q and of k lie side by side.
      const MutView3 heads(turned + begin * columns, {end - begin, heads_ + key_heads_, dim_}, {columns, dim_, 1});
      rotate(heads, View2(turns + begin * dim_, {end - begin, dim_}), heads);
    });
  }
  switch (turn.form) {
    case Turn::Form::whole:
      attend_whole(in, turn);
      break;
    case Turn::Form::sequence:
      attend_sequence(in, turn, (*turn.sessions[0])[index], work);
      break;
    case Turn::Form::step:
      attend_step(in, turn, index);
      break;
  }
  answer(static_cast<float*>(in.out.data()), turn, out);
}

void SelfAttention::attend_whole(const Inputs& in, const Turn& turn) const {
  attend_both_ways(as_sequence(in.q), as_sequence(in.k), as_sequence(in.v), turn, as_sequence(in.out));
}

HybridInputs SelfAttention::hybrid_inputs(const Inputs& in, bool step) const {
  const auto shaped = [step](View3 x) { return x.absent() ? View4() : step ? as_tokens(x) : as_sequence(x); };
  const int64_t rows = in.gates.extent(0), batch = step ? rows : 1, length = step ? 1 : rows;
  return {.q = shaped(in.q),
          .k = shaped(in.k),
          .v = shaped(in.v),
          .gate_logits = View3(static_cast<const float*>(in.gates.data()), {batch, length, key_heads_}),
          .log_scale = View1(log_scale_.data(), {heads_}),
          .q_far = shaped(in.q_far),
          .k_far = shaped(in.k_far)};
}

void SelfAttention::attend_sequence(const Inputs& in, const Turn& turn, AttentionMemory& memory, Workspace& work) const {
  const View4 q = as_sequence(in.q), k = as_sequence(in.k), v = as_sequence(in.v);
  const MutView4 out = as_sequence(in.out);
  switch (estimator_.kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
    case EstimatorKind::ra:
      return attend_cached(in, turn, std::get<KeyCache>(memory.past), work);
    case EstimatorKind::rfa:
      causal_attention(q, k, v, *map_, std::get<State>(memory.past), out, on(turn, AttentionOptions{}));
      return;
    case EstimatorKind::rfa_gate: {
      const View3 gates(static_cast<const float*>(in.gates.data()), {1, turn.rows, key_heads_});
      gated_attention(q, k, v, gates, *map_, std::get<State>(memory.past), out, on(turn, AttentionOptions{}));
      return;
    }
    case EstimatorKind::hybrid:
      hybrid_attention(hybrid_inputs(in, false), *map_, &std::get<WindowState>(memory.past), out,
                       on(turn, hybrid_options(estimator_)));
      return;
    case EstimatorKind::lara:
      return causal_lara_attention(q, k, v, &std::get<WindowState>(memory.past), out, on(turn, causal_lara_options(estimator_)));
    case EstimatorKind::eva:
      return causal_eva_attention(q, k, v, &std::get<WindowState>(memory.past), out, on(turn, causal_eva_options(estimator_)));
  }
}

int64_t SelfAttention::cached_rows(int64_t next) const {
  if (estimator_.kind != EstimatorKind::window) return next;
  // A token sees its own window and the `before` windows before it, so the kept keys start at the beginning of a window.
  return next - std::max<int64_t>(0, next / estimator_.window - estimator_.before) * estimator_.window;
}

void SelfAttention::attend_cached(const Inputs& in, const Turn& turn, KeyCache& cache, Workspace& work) const {
  const int64_t past = cache.rows(), rows = turn.rows;
  cache.append(in.k, in.v);
  if (estimator_.kind == EstimatorKind::softmax) {
    softmax_attention(as_sequence(in.q), cache.keys(), cache.values(), as_sequence(in.out),
                      on(turn, softmax_options(estimator_, true)));
    return;
  }
  // The op counts windows, and the draws of ra, from the first key. So queries of zeros are put in place of the past ones.
  View4 q = as_sequence(in.q);
  MutView4 out = as_sequence(in.out);
  const int64_t all = past + rows;
  if (past > 0) {
    float* padded = work.padded_q.of(all * width());
    std::fill_n(padded, past * width(), 0.0F);
    for (int64_t t = 0; t < rows; ++t) {
      std::copy_n(static_cast<const float*>(in.q.data()) + t * in.q.stride(0), width(), padded + (past + t) * width());
    }
    q = View4(padded, {1, all, heads_, dim_});
    out = MutView4(work.padded_out.of(all * width()), {1, all, heads_, dim_});
  }
  if (estimator_.kind == EstimatorKind::ra) {
    ra_attention(q, cache.keys(), cache.values(), out, on(turn, ra_options(estimator_, true)));
  } else {
    softmax_attention(q, cache.keys(), cache.values(), out, on(turn, softmax_options(estimator_, true)));
  }
  if (past > 0) {
    std::copy_n(static_cast<const float*>(out.data()) + past * width(), rows * width(), static_cast<float*>(in.out.data()));
  }
  cache.keep_last(cached_rows(turn.positions[0] + rows));
}

void SelfAttention::step_cached(const Inputs& in, const Turn& turn, int64_t row, KeyCache& cache, int threads) const {
  const auto one = [row](auto view) { return view.slice(0, row, 1); };
  if (estimator_.kind == EstimatorKind::ra) {
    Workspace work;
    const int64_t position = turn.positions[static_cast<size_t>(row)];
    const Inputs alone{.q = one(in.q), .k = one(in.k), .v = one(in.v), .gates = {}, .q_far = {}, .k_far = {}, .out = one(in.out)};
    const Turn single{.form = Turn::Form::sequence,
                      .rows = 1,
                      .positions = {&position, 1},
                      .run = {.threads = threads, .executor = turn.run.executor}};
    return attend_cached(alone, single, cache, work);
  }
  cache.append(one(in.k), one(in.v));
  const int64_t length = cache.rows();
  softmax_step(one(in.q), cache.keys(), cache.values(), {&length, 1}, one(in.out),
               {.threads = threads, .executor = turn.run.executor});
  cache.keep_last(cached_rows(turn.positions[static_cast<size_t>(row)] + 1));
}

void SelfAttention::attend_step(const Inputs& in, const Turn& turn, size_t index) const {
  switch (estimator_.kind) {
    case EstimatorKind::softmax:
    case EstimatorKind::window:
    case EstimatorKind::ra: {
      const std::vector<KeyCache*> caches = pasts<KeyCache>(turn, index);
      if (turn.rows == 1) return step_cached(in, turn, 0, *caches[0], turn.run.threads);
      turn.executor().run(turn.rows, turn.threads(),
                          [&](int64_t row, int) { step_cached(in, turn, row, *caches[static_cast<size_t>(row)], 1); });
      return;
    }
    case EstimatorKind::rfa:
      causal_step(in.q, in.k, in.v, *map_, pasts<State>(turn, index), in.out, on(turn, AttentionOptions{}));
      return;
    case EstimatorKind::rfa_gate:
      gated_step(in.q, in.k, in.v, in.gates, *map_, pasts<State>(turn, index), in.out, on(turn, AttentionOptions{}));
      return;
    case EstimatorKind::hybrid:
      hybrid_step(hybrid_inputs(in, true), *map_, pasts<WindowState>(turn, index), as_tokens(in.out),
                  on(turn, hybrid_options(estimator_)));
      return;
    case EstimatorKind::lara:
      return causal_lara_step(in.q, in.k, in.v, pasts<WindowState>(turn, index), in.out,
                              on(turn, causal_lara_options(estimator_)));
    case EstimatorKind::eva:
      return causal_eva_step(in.q, in.k, in.v, pasts<WindowState>(turn, index), in.out, on(turn, causal_eva_options(estimator_)));
  }
}

CrossAttention::CrossAttention(const ModelConfig& config, const Estimator& estimator, WeightReader& weights,
                               const std::string& prefix)
    : Heads(config, estimator, weights, prefix) {}

SourceMemory CrossAttention::read_source(const float* encoded, int64_t rows, const RunOptions& run) const {
  SourceMemory source{.state = {}, .keys = {}, .values = {}, .rows = rows};
  source.keys.resize(static_cast<size_t>(rows * key_width()));
  source.values.resize(source.keys.size());
  const Turn turn{.rows = rows, .run = run};
  multiply({{&k_, encoded, width(), source.keys.data(), key_width()}, {&v_, encoded, width(), source.values.data(), key_width()}},
           turn);
  if (!map_) return source;
  const Extents<4> shape{1, rows, key_heads_, dim_};
  source.state.emplace(*map_, StateOptions{.batch = 1, .value_dim = dim_});
  fold_keys({source.keys.data(), shape}, {source.values.data(), shape}, *map_, *source.state, on(turn, AttentionOptions{}));
  source.keys.clear();
  source.values.clear();
  return source;
}

void CrossAttention::forward(const float* x, const Turn& turn, size_t index, Workspace& work, float* out) const {
  const int64_t rows = turn.rows;
  float* q = work.qkv.of(rows * width());
  multiply({{&q_, x, width(), q, width()}}, turn);
  float* read = work.read.of(rows * width());
  // A sequence has one source; in a step each row has its own. Rows of a step are computed one by one, so that no result depends
  // on the other rows.
  const bool is_step = turn.form == Turn::Form::step;
  const int64_t count = is_step ? rows : 1, length = is_step ? 1 : rows;
  const auto read_one = [&](int64_t i, const Turn& on_turn) {
    const SourceMemory& source = (*turn.sources[static_cast<size_t>(i)])[index];
    const Extents<4> shape{1, length, heads_, dim_};
    const View4 queries(q + i * width(), shape);
    const MutView4 answers(read + i * width(), shape);
    if (source.state) {
      read_state(queries, *map_, *source.state, answers, on(on_turn, AttentionOptions{}));
      return;
    }
    const Extents<4> keys{1, source.rows, key_heads_, dim_};
    attend_both_ways(queries, View4(source.keys.data(), keys), View4(source.values.data(), keys), on_turn, answers);
  };
  if (count == 1) {
    read_one(0, turn);
  } else {
    const Turn single{.run = {.threads = 1, .executor = turn.run.executor}};
    turn.executor().run(count, turn.threads(), [&](int64_t i, int) { read_one(i, single); });
  }
  answer(read, turn, out);
}

}  // namespace raffia::runtime
