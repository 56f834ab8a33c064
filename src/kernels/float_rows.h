// The check of arguments that are rows of floats, for kernels that work row by row.
#ifndef RAFFIA_KERNELS_FLOAT_ROWS_H_
#define RAFFIA_KERNELS_FLOAT_ROWS_H_

#include <cstddef>

#include "core/check.h"

namespace raffia::internal {

// fp32 of this shape, with columns (the last axis) side by side. `why`: where the shape comes from.
template <size_t Rank, bool kMutable>
void require_rows(const char* op, const char* argument, const detail::BasicView<Rank, kMutable>& view, const Extents<Rank>& shape,
                  const char* why) {
  require_dtype(op, argument, view, {DType::f32});
  require_shape(op, argument, view, shape, why);
  require(shape[Rank - 1] < 2 || view.stride(Rank - 1) == 1, "{}: columns of {} are {} elements apart, expected 1", op, argument,
          view.stride(Rank - 1));
}

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_FLOAT_ROWS_H_
