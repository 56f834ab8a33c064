// The mean of the visible values: what every other estimator has to beat.
//
// It is linear attention with the feature phi = 1: S = sum_j 1 v_j, z = sum_j 1, out = S / z. So the kernels of linear attention
// compute it, from a single 1 that stands for every query and every key. Queries and keys are not read; their gradients are 0.
#include <cstring>

#include "core/check.h"
#include "core/state_size.h"
#include "estimators/registry.h"
#include "estimators/shared/calls.h"
#include "estimators/shared/sequences.h"

namespace raffia::internal {
namespace {

constexpr float kOne = 1;

// Every element is the same 1.
View4 ones(int64_t batch, int64_t length, int64_t heads) { return {&kOne, DType::f32, {batch, length, heads, 1}, {0, 0, 0, 1}}; }

// The inputs of linear attention.
struct Ones {
  explicit Ones(const AttendInputs& in)
      : q(ones(in.q.extent(0), in.q.extent(1), in.q.extent(2))),
        k(ones(in.k.extent(0), in.k.extent(1), in.k.extent(2))),
        v(in.v),
        map(FeatureMap::identity(1, in.k.extent(2))) {
    require(in.q.extent(3) == in.k.extent(3), "mean: q has dim {}, expected {} (dim of k)", in.q.extent(3), in.k.extent(3));
  }

  View4 q, k, v;
  FeatureMap map;
};

// Denominators are counts, exact up to 2^24 tokens: they need no floor.
AttentionOptions options_of(const AttendOptions& options) {
  AttentionOptions op = linear_options(options);
  op.eps = 0.0F;
  return op;
}

StateShape shape_of(const MemorySizes& sizes) {
  return {.batch = sizes.batch, .heads = sizes.heads, .features = 1, .value_dim = sizes.value_dim};
}

void require_like(const char* argument, const MutView4& gradient, const View4& input) {
  if (!gradient.absent()) require_shape("mean", argument, gradient, input.shape(), "shape of the input");
}

void clear(const MutView4& view) {
  const size_t size = size_of(view.dtype());
  for (int64_t b = 0; b < view.extent(0); ++b) {
    if (view.stride(3) != 1) {
      fill_rest(view, b, 0);
      continue;
    }
    for (int64_t t = 0; t < view.extent(1); ++t) {
      for (int64_t h = 0; h < view.extent(2); ++h) {
        auto* row = static_cast<std::byte*>(view.data()) + view.offset(b, t, h, int64_t{0}) * static_cast<int64_t>(size);
        std::memset(row, 0, static_cast<size_t>(view.extent(3)) * size);  // the bits of 0 in every type
      }
    }
  }
}

class MeanModule : public EstimatorModule {
 public:
  MeanModule() : EstimatorModule(EstimatorKind::mean, "mean", "mean of the visible values, a baseline", {}) {}

  EstimatorTraits traits(const Estimator&) const override {
    return {.cross = true, .constant_memory = true, .wants_positions = false, .has_segments = true};
  }

  Report attend(const Estimator&, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
                std::span<float> record) const override {
    const Ones in(inputs);
    if (options.causal) {
      State state(
          {.batch = sequences_of(inputs, options.layout), .heads = in.map.heads(), .features = 1, .value_dim = in.v.extent(3)});
      causal_attention(in.q, in.k, in.v, in.map, state, out, options_of(options), record);
    } else {
      rfa_attention(in.q, in.k, in.v, in.map, out, options_of(options), record);
    }
    return {};
  }

  int64_t record_size(const Estimator&, const AttendInputs& inputs, const AttendOptions& options) const override {
    const Ones in(inputs);
    return raffia::record_size(in.q, in.k, in.v, in.map, options_of(options));
  }

  void backward(const Estimator&, const AttendInputs& inputs, View4 out, std::span<const float> record, View4 dout,
                const AttendGradients& gradients, const AttendOptions& options) const override {
    const Ones in(inputs);
    require_like("gradients.q", gradients.q, inputs.q);
    require_like("gradients.k", gradients.k, inputs.k);
    const auto run = options.causal ? causal_attention_backward : rfa_attention_backward;
    run(in.q, in.k, in.v, in.map, out, record, dout, {.v = gradients.v}, options_of(options));
    clear(gradients.q);
    clear(gradients.k);
  }

  Memory empty_memory(const Estimator&, const MemorySizes& sizes) const override { return State(shape_of(sizes)); }
  std::optional<int64_t> memory_bytes(const Estimator&, const MemorySizes& sizes, int64_t) const override {
    return bytes_of(shape_of(sizes));
  }

  Report extend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                const AttendOptions& options) const override {
    const Ones in(inputs);
    causal_attention(in.q, in.k, in.v, in.map, state_in(estimator, memory), out, options_of(options));
    return {};
  }

  Report step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
              const AttendOptions& options) const override {
    const Ones in(inputs);
    causal_step(without_tokens(in.q), without_tokens(in.k), without_tokens(in.v), in.map, parts_of(estimator, sessions, state_in),
                without_tokens(out), options_of(options));
    return {};
  }

  // A query meets one key, which stands for all: the sum.
  TokenWork work(const Estimator&, bool, int64_t) const override { return {.keys = 1}; }
};

}  // namespace

const EstimatorModule& mean_module() {
  static const MeanModule module;
  return module;
}

}  // namespace raffia::internal
