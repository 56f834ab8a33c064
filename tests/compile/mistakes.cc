// Mistakes in calls that have to be compile errors, one for each value of MISTAKE; 0: none of them.
#include <cstdint>

#include "raffia/views.h"

#ifndef MISTAKE
#define MISTAKE 0
#endif

raffia::View4 view_of(const float* data, const int* integers) {
  (void)integers;
#if MISTAKE == 1
  return raffia::View4(integers, {8, 1, 8, 4});
#elif MISTAKE == 2
  return raffia::View4(data, {8, 1, 8});
#elif MISTAKE == 3
  return raffia::View4(data, {8, 1, 8, 4}, {32, 32, 4});
#elif MISTAKE == 4
  return raffia::View4(data, raffia::Extents<4>{8, 1, 8, 4}, {32, 32, 4});
#else
  const raffia::Extents<4> shape{8, 1, 8, 4};
  const int64_t list[] = {8, 1, 8, 4};
  (void)raffia::View4(data, shape);
  (void)raffia::View4(data, list);
  (void)raffia::View4(data, shape, {32, 32, 4, 1});
  (void)raffia::View4(data, {8, 1, 8, 4}, {32, 32, 4, 1});
  (void)raffia::View1(data, {256});
  return raffia::View4(data, {8, 1, 8, 4});
#endif
}
