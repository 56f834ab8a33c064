#include "kernels/step.h"

#include "core/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/step.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off: foreach_target.h comes first
#include "kernels/step-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace raffia::internal {
namespace HWY_NAMESPACE {

void step(const LinearStep& task, float* scratch, ClampCount& clamps) {
  const Tag d;
  const size_t features = task.map.features, columns = task.value_dim, dim = task.map.dim;
  const size_t padded_rows = (HWY_MAX(task.map.rows, dim) + kPanel - 1) / kPanel * kPanel;
  Arena arena(scratch);
  const size_t vectors = 1 + task.group;  // the key, then the queries
  float* x = arena.take(vectors * dim);
  float* projected = arena.take(vectors * padded_rows);
  float* second = arena.take(padded_rows);
  float* written = arena.take(features);  // u phi(k)
  float* phi = arena.take(features);
  float* value_staging = arena.take(columns);
  float* y = arena.take(columns);

  const auto row_of = [&](size_t i) HWY_ATTR { return i == 0 ? std::pair(task.k, size_t{0}) : std::pair(task.q, i - 1); };
  const bool given = task.map.kind == MapKind::identity;  // the inputs are features already
  for (size_t i = 0; !given && i < vectors; ++i) {
    const auto [rows, row] = row_of(i);
    std::copy_n(row_pointer(rows, row, dim, x + i * dim), dim, x + i * dim);
    prepare_row(task.map, x + i * dim);
  }
  const bool projects = has_projection(task.map.kind);
  const auto projection_of = [&](size_t i) HWY_ATTR { return projected + i * padded_rows; };
  for (size_t i = 0; projects && i + 2 <= vectors; i += 2) {
    multiply_vectors<2>(task.map.weights, task.map.rows, dim, {x + i * dim, x + (i + 1) * dim},
                        {projection_of(i), projection_of(i + 1)});
  }
  if (projects && vectors % 2 == 1) {
    multiply_vectors<1>(task.map.weights, task.map.rows, dim, {x + (vectors - 1) * dim}, {projection_of(vectors - 1)});
  }
  const auto features_of = [&](size_t i) HWY_ATTR {
    const auto [rows, row] = row_of(i);
    if (given) return row_pointer(rows, row, dim, x + i * dim);
    map_row(task.map, x + i * dim, projected + i * padded_rows, second, phi);
    return static_cast<const float*>(phi);
  };
  const float* phi_k = features_of(0);
  const float* value = row_pointer(task.v, 0, columns, value_staging);

  float keep = 1.0f, write = 1.0f;
  if (task.gated) {
    Vec g, u, l;
    gate_of(d, hn::Set(d, task.gate_logit), g, u, l);
    keep = hn::GetLane(g);
    write = hn::GetLane(u);
    *task.log_decay += hn::GetLane(l);
  }
  *task.mass = keep * *task.mass + write;

  size_t f = 0;
  for (; f + kLanes <= features; f += kLanes) {
    const Vec added = hn::Mul(hn::Set(d, write), hn::LoadU(d, phi_k + f));
    hn::StoreU(added, d, written + f);
    hn::StoreU(hn::MulAdd(hn::Set(d, keep), hn::LoadU(d, task.normaliser + f), added), d, task.normaliser + f);
  }
  for (; f < features; ++f) {
    written[f] = write * phi_k[f];
    task.normaliser[f] = keep * task.normaliser[f] + written[f];
  }

  for (size_t g = 0; g < task.group; ++g) {
    const float* phi_q = features_of(1 + g);
    // The first query head updates the state as it reads it; the others find it updated.
    const float decay = g == 0 ? keep : 1.0f;
    if (g == 1) std::fill_n(written, features, 0.0f);
    size_t c = for_columns(columns, [&](size_t at, auto width, auto lanes) HWY_ATTR {
      step_columns<decltype(width)::value>(lanes, features, columns, decay, written, phi_q, value + at, task.sums + at, y + at);
    });
    for (; c < columns; ++c) {
      y[c] = 0.0f;
      for (size_t i = 0; i < features; ++i) {
        float& s = task.sums[i * columns + c];
        s = decay * s + written[i] * value[c];
        y[c] += phi_q[i] * s;
      }
    }
    const Divisor divisor(row_dot(phi_q, task.normaliser, features), task.eps * *task.mass);
    ++clamps.rows;
    clamps.clamped += divisor.clamped ? 1 : 0;
    float* out = task.out.direct() ? task.out.direct_row(g) : y;
    for (size_t i = 0; i < columns; ++i) out[i] = y[i] * divisor.inverse;
    for (size_t i = 0; i < columns && !task.out.direct(); ++i) task.out.set(g, i, y[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace raffia::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace raffia::internal {

HWY_EXPORT(step);

// x and its projection for the key and every query, one projection more, two feature rows, v and y, each rounded up to a panel.
size_t step_scratch_floats(const LinearStep& task) {
  return (2 * (1 + task.group) + 1) * (std::max(task.map.rows, task.map.dim) + kChunk) + 2 * (task.map.features + kChunk) +
         2 * (task.value_dim + kChunk);
}

void linear_step(const LinearStep& task, float* scratch, ClampCount& clamps) {
  chosen(KernelOp::linear_step, HWY_DISPATCH_TABLE(step))(task, scratch, clamps);
}

}  // namespace raffia::internal
#endif  // HWY_ONCE
