#include "core/dispatch.h"
#include "kernels/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/features.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/linear_backward-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

// Buffers for rows of x and of phi; both go through [.., 16] panels with room for one more.
struct FeatureBuffers {
  FeatureBuffers(Arena& arena, const MapParams& map)
      : widest(HWY_MAX(map.dim, map.features)),
        zeros(arena.take(widest)),
        staging(arena.take(kPanel * widest)),
        x(arena.take(map.dim * kPanel)),
        inverse_norm(arena.take(kPanel)),
        phi(arena.take((map.features + kPanel) * kPanel)),
        dphi(arena.take(map.features * kPanel)),
        packed_x(arena.take(kSquare)),
        dx(arena.take((map.dim + kPanel) * kPanel)),
        rows(arena.take(kPanel * (widest + kPanel))) {
    if (zeros != nullptr) std::fill_n(zeros, widest, 0.0f);
  }

  size_t widest;
  float* zeros;
  float* staging;
  float* x;
  float* inverse_norm;
  float* phi;
  float* dphi;
  float* packed_x;
  float* dx;
  float* rows;
};

size_t feature_scratch(const MapParams& map) {
  Arena arena(nullptr);
  const FeatureBuffers buffers(arena, map);
  return arena.used();
}

HWY_NOINLINE void forward_rows(const MapParams& map, const Rows& x, size_t begin, size_t end, const MutRows& phi,
                               float* scratch) {
  Arena arena(scratch);
  const FeatureBuffers buffers(arena, map);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    for (size_t t = 0; t < kPanel; ++t) valid[t] = t < count;
    transpose(gather(x, first, valid, map.dim, buffers.zeros, buffers.staging), map.dim, buffers.x);
    map_features(map, {buffers.x, buffers.inverse_norm, buffers.phi});
    put_columns(phi, first, count, valid, map.features, buffers.phi, buffers.rows);
  }
}

HWY_NOINLINE void backward_rows(const MapParams& map, const Rows& x, size_t begin, size_t end, const Rows& dphi,
                                const MutRows& dx, const MapSums& sums, float* scratch) {
  Arena arena(scratch);
  const FeatureBuffers buffers(arena, map);
  for (size_t first = begin; first < end; first += kPanel) {
    const size_t count = HWY_MIN(kPanel, end - first);
    bool valid[kPanel];
    for (size_t t = 0; t < kPanel; ++t) valid[t] = t < count;
    transpose(gather(x, first, valid, map.dim, buffers.zeros, buffers.staging), map.dim, buffers.x);
    map_features(map, {buffers.x, buffers.inverse_norm, buffers.phi});
    transpose(gather(dphi, first, valid, map.features, buffers.zeros, buffers.staging), map.features, buffers.dphi);
    map_features_backward(map, buffers.x, buffers.inverse_norm, buffers.phi, buffers.dphi, sums, buffers.packed_x, buffers.dx);
    if (dx.data != nullptr) put_columns(dx, first, count, valid, map.dim, buffers.dx, buffers.rows);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(feature_scratch);
HWY_EXPORT(forward_rows);
HWY_EXPORT(backward_rows);

size_t features_scratch_floats(const MapParams& map) {
  return chosen(KernelOp::features, HWY_DISPATCH_TABLE(feature_scratch))(map);
}

void features_forward(const MapParams& map, const Rows& x, size_t begin, size_t end, const MutRows& phi, float* scratch) {
  chosen(KernelOp::features, HWY_DISPATCH_TABLE(forward_rows))(map, x, begin, end, phi, scratch);
}

void features_backward(const MapParams& map, const Rows& x, size_t begin, size_t end, const Rows& dphi, const MutRows& dx,
                       const MapSums& sums, float* scratch) {
  chosen(KernelOp::features, HWY_DISPATCH_TABLE(backward_rows))(map, x, begin, end, dphi, dx, sums, scratch);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
