// Rows of random projections that ops draw again and again: for every token, in decoding.
#ifndef RAFFIA_ESTIMATORS_DRAWN_ROWS_H_
#define RAFFIA_ESTIMATORS_DRAWN_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "raffia/random.h"

namespace raffia {

// Which rows: draw_projection() of `count` rows for each of `heads` streams.
struct RowsToDraw {
  uint64_t seed = 0;
  uint32_t layer = 0, draw = 0;
  Draws draws = Draws::orthogonal;
  int64_t count = 0, heads = 0, dim = 0;
  bool operator==(const RowsToDraw&) const = default;
};

// [count, heads, dim]. 64 x 64 rows for 8 heads take 5 ms to draw, 60 times a step of decoding that reads them: the process keeps
// the last ones of every shape, as many as a model has layers. Thread-safe.
using DrawnRows = std::shared_ptr<const std::vector<float>>;
DrawnRows drawn_rows(const RowsToDraw& wanted);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATORS_DRAWN_ROWS_H_
