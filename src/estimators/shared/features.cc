// Feature maps as separate ops.
#include "core/check.h"
#include "core/scratch.h"
#include "core/trace.h"
#include "estimators/shared/map_sums.h"
#include "estimators/shared/sequences.h"
#include "kernels/linear.h"

namespace raffia {

using namespace internal;
namespace {

constexpr int64_t kTokens = 512;  // rows per task

void require_input(const char* name, View4 x, const FeatureMap& map, const RunOptions& run) {
  require(run.threads >= 0, "{}: threads is {}, expected at least 0", name, run.threads);
  require_dtype(name, "x", x, {DType::f32, DType::bf16});
  require(x.extent(2) % map.heads() == 0, "{}: x has {} heads, expected a multiple of the {} heads of the feature map", name,
          x.extent(2), map.heads());
  require_shape(name, "x", x, {x.extent(0), x.extent(1), x.extent(2), map.dim()}, "dim of the feature map");
}

// Part of one head.
struct Part {
  int64_t b, h, begin, end;
};

std::vector<Part> cut(View4 x) {
  std::vector<Part> parts;
  for (int64_t b = 0; b < x.extent(0); ++b) {
    for (int64_t h = 0; h < x.extent(2); ++h) {
      for (int64_t t = 0; t < x.extent(1); t += kTokens) parts.push_back({b, h, t, std::min(t + kTokens, x.extent(1))});
    }
  }
  return parts;
}

}  // namespace

void apply_features(View4 x, const FeatureMap& map, MutView4 phi, const RunOptions& run) {
  constexpr const char* kName = "apply_features";
  require_input(kName, x, map, run);
  require_dtype(kName, "phi", phi, {DType::f32, DType::bf16});
  require_shape(kName, "phi", phi, {x.extent(0), x.extent(1), x.extent(2), map.features()},
                "batch, length and heads of x, features of the map");
  const Trace trace(kName, "x", x, static_cast<int64_t>(kChunk));
  const std::vector<Part> parts = cut(x);
  const Workers workers(run);
  const Scratch scratch(workers.count(), features_scratch_floats(MapParams(map, 0)));
  const int64_t group = x.extent(2) / map.heads();
  workers.run(static_cast<int64_t>(parts.size()), scratch, [&](int64_t index, float* memory) {
    const Part& part = parts[static_cast<size_t>(index)];
    features_forward(MapParams(map, part.h / group), rows_of<Rows>(x, part.b, part.begin, part.h), 0,
                     static_cast<size_t>(part.end - part.begin), rows_of<MutRows>(phi, part.b, part.begin, part.h), memory);
  });
}

void apply_features_backward(View4 x, const FeatureMap& map, View4 dphi, MutView4 dx, const MapGradients& parameters,
                             const RunOptions& run) {
  constexpr const char* kName = "apply_features_backward";
  require_input(kName, x, map, run);
  require_dtype(kName, "dphi", dphi, {DType::f32, DType::bf16});
  require_shape(kName, "dphi", dphi, {x.extent(0), x.extent(1), x.extent(2), map.features()},
                "batch, length and heads of x, features of the map");
  if (!dx.absent()) {
    require_dtype(kName, "dx", dx, {DType::f32, DType::bf16});
    require_shape(kName, "dx", dx, x.shape(), "shape of x");
  }
  const Trace trace(kName, "x", x, static_cast<int64_t>(kChunk));
  const std::vector<Part> parts = cut(x);
  MapSumSlots sums(kName, map, parameters, parts.size());
  const Workers workers(run);
  const Scratch scratch(workers.count(), features_scratch_floats(MapParams(map, 0)));
  const int64_t group = x.extent(2) / map.heads();
  workers.run(static_cast<int64_t>(parts.size()), scratch, [&](int64_t index, float* memory) {
    const Part& part = parts[static_cast<size_t>(index)];
    features_backward(MapParams(map, part.h / group), rows_of<Rows>(x, part.b, part.begin, part.h), 0,
                      static_cast<size_t>(part.end - part.begin), rows_of<Rows>(dphi, part.b, part.begin, part.h),
                      rows_of<MutRows>(dx, part.b, part.begin, part.h), sums.of(static_cast<size_t>(index)), memory);
  });
  for (size_t i = 0; i < parts.size(); ++i) sums.add(i, parts[i].h / group);
}

}  // namespace raffia
