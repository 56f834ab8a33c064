#include "estimators/shared/drawn_rows.h"

#include <algorithm>

#include "core/check.h"

namespace raffia::internal {

DrawnRows::DrawnRows(const char* function, const RowsToDraw& wanted) : wanted_(wanted) {
  require(checked_product({wanted.count, wanted.heads, wanted.dim, static_cast<int64_t>(sizeof(float))}).has_value(),
          "{}: {} random rows of {} heads and {} dimensions do not fit in memory", function, wanted.count, wanted.heads,
          wanted.dim);
}

const float* DrawnRows::get() {
  const auto& [seed, layer, draw, draws, count, heads, dim] = wanted_;
  if (!rows_.empty()) return rows_.data();
  rows_.resize(static_cast<size_t>(count * heads * dim));
  std::vector<float> of_head(static_cast<size_t>(count * dim));
  for (int64_t g = 0; g < heads; ++g) {
    draw_projection({seed, layer, static_cast<uint32_t>(g), draw}, draws, count, dim, of_head);
    for (int64_t r = 0; r < count; ++r) std::copy_n(of_head.data() + r * dim, dim, rows_.data() + (r * heads + g) * dim);
  }
  return rows_.data();
}

const float* DrawnRows::of_entry(const WindowState* state, int64_t entry, bool needed) {
  if (state != nullptr && state->tokens(entry) > 0) return state->part(WindowPart::projections, entry).data();
  return needed ? get() : nullptr;
}

void DrawnRows::give_to(WindowState& state, int64_t entry) {
  const std::span<float> rows = state.part(WindowPart::projections, entry);
  std::copy_n(get(), rows.size(), rows.begin());
}

}  // namespace raffia::internal
