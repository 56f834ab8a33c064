// What the tests of kernels share: seeded arrays, bits, layouts, and a run on every ISA.
#ifndef RAFFIA_TESTS_SUPPORT_ARRAYS_H_
#define RAFFIA_TESTS_SUPPORT_ARRAYS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/isa.h"
#include "raffia/random.h"
#include "raffia/views.h"

namespace raffia::internal {

inline constexpr double kUnit = 0x1p-24;  // unit roundoff of fp32
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <size_t Rank>
size_t size_of_shape(const Extents<Rank>& shape) {
  size_t size = 1;
  for (int64_t extent : shape) size *= static_cast<size_t>(extent);
  return size;
}

inline std::vector<float> normals(size_t count, uint64_t seed, float mean = 0, float scale = 1) {
  RandomStream stream({.seed = seed});
  std::vector<float> values(count);
  for (float& value : values) value = mean + scale * static_cast<float>(stream.next_normal());
  return values;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Rounds `values` to bf16 in place and returns them so.
inline std::vector<BFloat16> round_to_bf16(std::span<float> values) {
  std::vector<BFloat16> rounded;
  for (float& value : values) {
    rounded.push_back(BFloat16::from_float(value));
    value = rounded.back().to_float();
  }
  return rounded;
}

// The elements of `view` in row-major order.
inline std::vector<float> elements_of(View4 view) {
  std::vector<float> values;
  values.reserve(static_cast<size_t>(view.size()));
  for (int64_t a = 0; a < view.extent(0); ++a) {
    for (int64_t b = 0; b < view.extent(1); ++b) {
      for (int64_t c = 0; c < view.extent(2); ++c) {
        for (int64_t d = 0; d < view.extent(3); ++d) values.push_back(static_cast<float>(view(a, b, c, d)));
      }
    }
  }
  return values;
}

// Calls body() once with each ISA as the active one, then restores the best.
template <class Body>
void for_each_isa(const Body& body) {
  struct Restore {
    ~Restore() { set_max_isa(Isa::avx512); }
  } restore;
  for (Isa isa : available_isas()) {
    set_max_isa(isa);
    body();
  }
}

// What InvalidArgument says, or nothing if `body` does not throw it.
template <class Body>
std::string refusal_of(const Body& body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_ARRAYS_H_
