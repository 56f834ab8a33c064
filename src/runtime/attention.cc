#include "runtime/attention.h"

#include <algorithm>

#include "kernels/layer_ops.h"
#include "raffia/error.h"
#include "runtime/products.h"

namespace raffia::internal::runtime {
namespace {

constexpr float kHeadNormEpsilon = 1e-6F;  // docs/model-format.md

std::optional<FeatureMap> read_map(const AttentionPlan& attention, WeightReader& weights) {
  if (!attention.map) return std::nullopt;
  const MapPlan& plan = *attention.map;
  const int64_t heads = attention.key_heads, dim = attention.head_dim();
  const auto view = [](const std::vector<float>& values, const TensorPlan& tensor) {
    return View3(values.data(), {tensor.shape[0], tensor.shape[1], tensor.shape[2]});
  };
  if (plan.weight) {
    const std::vector<float> weight = weights.floats(*plan.weight), bias = weights.floats(*plan.bias);
    return FeatureMap::relu(view(weight, *plan.weight), {bias.data(), {plan.bias->shape[0], plan.bias->shape[1]}});
  }
  if (plan.draws) {
    const std::vector<float> draws = weights.floats(*plan.draws);
    FeatureMap map = FeatureMap::with_draws(plan.kind, view(draws, *plan.draws));
    if (plan.sigma) map.set_sigma(weights.floats(*plan.sigma));
    return map;
  }
  return plan.kind == MapKind::elu ? FeatureMap::elu(dim, heads) : FeatureMap::identity(dim, heads);
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
  options.run = turn.run;
  return options;
}

// Attention on the threads of the turn.
AttendOptions on_threads(const Turn& turn, bool causal) { return {.causal = causal, .run = turn.run}; }

}  // namespace

Heads::Heads(const AttentionPlan& plan, WeightReader& weights)
    : module_(module_of(plan.estimator)),
      estimator_(plan.estimator),
      heads_(plan.heads),
      key_heads_(plan.key_heads),
      dim_(plan.head_dim()),
      q_(weights.linear(plan.q)),
      k_(weights.linear(plan.k)),
      v_(weights.linear(plan.v)),
      out_(weights.linear(plan.out)),
      map_(read_map(plan, weights)) {
  if (plan.head_norm_weight) head_norm_ = weights.floats(*plan.head_norm_weight);
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
  module_.attend(estimator_, {.q = q, .k = k, .v = v, .map = map()}, out, on_threads(turn, false), {});
}

SelfAttention::SelfAttention(const AttentionPlan& plan, WeightReader& weights) : Heads(plan, weights), conv_(plan.conv) {
  if (plan.rotary) rotary_.emplace(dim_, plan.rotary_base);
  if (plan.gate) gate_ = weights.linear(*plan.gate);
  if (plan.log_scale) log_scale_ = weights.floats(*plan.log_scale);
  // Stored by column; read tap by tap.
  const int64_t total = width() + 2 * key_width();
  taps_.resize(static_cast<size_t>(conv_ * total));
  int64_t column = 0;
  for (const std::optional<TensorPlan>& part : {plan.conv_q, plan.conv_k, plan.conv_v}) {
    if (!part) continue;
    const std::vector<float> stored = weights.floats(*part);
    for (int64_t c = 0; c < part->shape[0]; ++c, ++column) {
      for (int64_t j = 0; j < conv_; ++j) {
        taps_[static_cast<size_t>(j * total + column)] = stored[static_cast<size_t>(c * conv_ + j)];
      }
    }
  }
}

MemorySizes SelfAttention::memory_sizes() const {
  return {.batch = 1,
          .query_heads = heads_,
          .heads = key_heads_,
          .dim = dim_,
          .value_dim = dim_,
          .map = map(),
          .has_far = rotary_.has_value()};
}

size_t SelfAttention::tail_size() const { return static_cast<size_t>(conv_ > 0 ? (conv_ - 1) * (width() + 2 * key_width()) : 0); }

AttentionMemory SelfAttention::empty_memory() const {
  return {.past = module_.empty_memory(estimator_, memory_sizes()), .tail = std::vector<float>(tail_size())};
}

std::optional<uint64_t> SelfAttention::memory_bytes(int64_t position) const {
  const std::optional<int64_t> past = module_.memory_bytes(estimator_, memory_sizes(), position);
  if (!past) return {};
  return static_cast<uint64_t>(*past) + tail_size() * sizeof(float);
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
    if (!log_scale_.empty()) {
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
      attend_sequence(in, turn, (*turn.sessions[0])[index]);
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

AttendInputs SelfAttention::op_inputs(const Inputs& in, bool step) const {
  const auto shaped = [step](View3 x) { return x.absent() ? View4() : step ? as_tokens(x) : as_sequence(x); };
  AttendInputs inputs{.q = shaped(in.q),
                      .k = shaped(in.k),
                      .v = shaped(in.v),
                      .q_far = shaped(in.q_far),
                      .k_far = shaped(in.k_far),
                      .map = map()};
  if (!in.gates.absent()) {
    const int64_t rows = in.gates.extent(0);
    inputs.gate_logits = View3(static_cast<const float*>(in.gates.data()), {step ? rows : 1, step ? 1 : rows, key_heads_});
  }
  if (!log_scale_.empty()) inputs.log_scale = View1(log_scale_.data(), {heads_});
  return inputs;
}

void SelfAttention::attend_sequence(const Inputs& in, const Turn& turn, AttentionMemory& memory) const {
  module_.extend(estimator_, op_inputs(in, false), memory.past, as_sequence(in.out), on_threads(turn, true));
}

void SelfAttention::attend_step(const Inputs& in, const Turn& turn, size_t index) const {
  std::vector<Memory*> pasts;
  pasts.reserve(turn.sessions.size());
  for (Memories* session : turn.sessions) pasts.push_back(&(*session)[index].past);
  module_.step(estimator_, op_inputs(in, true), pasts, as_tokens(in.out), on_threads(turn, true));
}

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

}  // namespace raffia::internal::runtime
