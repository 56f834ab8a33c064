// Arrays of numbers in files: little-endian, of several types. In memory they are floats.
#ifndef RAFFIA_IO_FORMATS_ELEMENTS_H_
#define RAFFIA_IO_FORMATS_ELEMENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/sibling_api.h"

namespace raffia::internal {

// Row-major.
struct FloatArray {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

enum class ElementType : uint8_t { f16, bf16, f32, f64 };

size_t size_of(ElementType type);

// Every type except f64 converts exactly; doubles are rounded to nearest. `bytes` has as many elements as `values`.
void to_floats(std::span<const std::byte> bytes, ElementType type, std::span<float> values);

// The product of all extents, 1 for none; nullopt if one is negative or the product overflows int64_t.
RAFFIA_SIBLING_API std::optional<int64_t> element_count(std::span<const int64_t> shape);

RAFFIA_SIBLING_API std::string to_string(std::span<const int64_t> shape);  // "[2, 128, 8]"

// A little-endian unsigned number of the size of `Word`, at `at`.
template <typename Word>
Word little_endian(std::span<const std::byte> bytes, size_t at = 0) {
  Word word = 0;
  for (size_t i = 0; i < sizeof(Word); ++i) word = static_cast<Word>(word | (std::to_integer<Word>(bytes[at + i]) << (8 * i)));
  return word;
}

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_ELEMENTS_H_
