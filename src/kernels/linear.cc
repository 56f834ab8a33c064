#include "kernels/linear.h"

#include <algorithm>
#include <cmath>

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/linear.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia {
namespace HWY_NAMESPACE {

size_t scratch_floats(const LinearProblem& problem) {
  Arena forward(nullptr), folding(nullptr);
  const ChunkBuffers for_forward(forward, problem, problem.group, 1);
  const ChunkBuffers for_fold(folding, problem, 0, kFoldChunks);
  return std::max(forward.used(), folding.used());
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia {

HWY_EXPORT(causal_forward);
HWY_EXPORT(fold);
HWY_EXPORT(read);
HWY_EXPORT(scratch_floats);

MapParams::MapParams(const FeatureMap& map, int64_t head)
    : kind(map.kind()),
      dim(static_cast<size_t>(map.dim())),
      rows(static_cast<size_t>(map.rows())),
      features(static_cast<size_t>(map.features())),
      weights(map.weights(head).data()),
      draws(map.draws(head).data()),
      sigma(map.sigma(head).data()),
      bias(map.bias(head).data()),
      input_scale(map.input_scale()),
      output_scale(map.output_scale()),
      shift(map.shift()) {}

void pack_state(const float* sums, const float* normaliser, const LinearProblem& problem, const PackedState& packed) {
  const size_t features = problem.map.features, columns = problem.value_dim;
  for (size_t p = 0; p < problem.panels(); ++p) {
    const size_t count = std::min(kChunk, columns - p * kChunk);
    for (size_t f = 0; f < features; ++f) {
      float* row = packed.sums + (p * features + f) * kChunk;
      std::fill(std::copy_n(sums + f * columns + p * kChunk, count, row), row + kChunk, 0.0f);
    }
  }
  std::copy_n(normaliser, features, packed.normaliser);
}

void unpack_state(const PackedState& packed, const LinearProblem& problem, float* sums, float* normaliser) {
  const size_t features = problem.map.features, columns = problem.value_dim;
  for (size_t p = 0; p < problem.panels(); ++p) {
    const size_t count = std::min(kChunk, columns - p * kChunk);
    for (size_t f = 0; f < features; ++f) {
      std::copy_n(packed.sums + (p * features + f) * kChunk, count, sums + f * columns + p * kChunk);
    }
  }
  std::copy_n(packed.normaliser, features, normaliser);
}

void clear_state(const LinearProblem& problem, PackedState& packed) {
  std::fill_n(packed.sums, problem.map.features * problem.panels() * kChunk, 0.0f);
  std::fill_n(packed.normaliser, problem.map.features, 0.0f);
  packed.mass = 0;
  packed.log_decay = 0;
}

void copy_state(const LinearProblem& problem, const PackedState& from, PackedState& to) {
  std::copy_n(from.sums, problem.state_floats(), to.sums);
  to.mass = from.mass;
  to.log_decay = from.log_decay;
}

void compose_states(const LinearProblem& problem, const PackedState& earlier, PackedState& later) {
  const double decay = std::exp(later.log_decay);
  const float factor = static_cast<float>(decay);
  const size_t sums = problem.map.features * problem.panels() * kChunk;
  for (size_t i = 0; i < sums; ++i) later.sums[i] += factor * earlier.sums[i];
  for (size_t f = 0; f < problem.map.features; ++f) later.normaliser[f] += factor * earlier.normaliser[f];
  later.mass += decay * earlier.mass;
  later.log_decay += earlier.log_decay;
}

size_t linear_scratch_floats(const LinearProblem& problem) { return chosen(HWY_DISPATCH_TABLE(scratch_floats))(problem); }

void causal_forward(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* record, float* scratch,
                    ClampCount& clamps) {
  chosen(HWY_DISPATCH_TABLE(causal_forward))(problem, begin, end, state, record, scratch, clamps);
}

void fold(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* scratch) {
  chosen(HWY_DISPATCH_TABLE(fold))(problem, begin, end, state, scratch);
}

void read(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, float* scratch, ClampCount& clamps) {
  chosen(HWY_DISPATCH_TABLE(read))(problem, begin, end, state, scratch, clamps);
}

}  // namespace raffia
#endif  // HWY_ONCE
