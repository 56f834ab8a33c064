// Random rows that a call may need: drawn once, at first use.
#ifndef RAFFIA_ESTIMATORS_SHARED_DRAWN_ROWS_H_
#define RAFFIA_ESTIMATORS_SHARED_DRAWN_ROWS_H_

#include <cstdint>
#include <vector>

#include "raffia/random.h"
#include "raffia/window_state.h"

namespace raffia::internal {

// Which rows: draw_projection() of `count` rows for each of `heads` streams. Fewer rows are the first ones of more.
struct RowsToDraw {
  uint64_t seed = 0;
  uint32_t layer = 0, draw = 0;
  Draws draws = Draws::orthogonal;
  int64_t count = 0, heads = 0, dim = 0;
};

class DrawnRows {
 public:
  // Draws nothing yet. Throws InvalidArgument, which names `function`, if the size does not fit an int64_t.
  DrawnRows(const char* function, const RowsToDraw& wanted);

  // [count, heads, dim]. For one thread at a time.
  const float* get();
  // The rows stored in the entry, if it has seen a token; otherwise get() if they are needed, else null.
  const float* of_entry(const WindowState* state, int64_t entry, bool needed);
  // For an entry that is about to see its first token.
  void give_to(WindowState& state, int64_t entry);

 private:
  RowsToDraw wanted_;
  std::vector<float> rows_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_DRAWN_ROWS_H_
