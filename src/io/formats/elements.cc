#include "io/formats/elements.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "core/check.h"
#include "raffia/views.h"

namespace raffia::internal {
namespace {

float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000U) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fU;
  const uint32_t fraction = half & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: fraction 2^-24
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (fraction << 13));
}

template <typename Word, typename Convert>
void convert_each(std::span<const std::byte> bytes, std::span<float> values, const Convert& convert) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = convert(little_endian<Word>(bytes, i * sizeof(Word)));
}

}  // namespace

size_t size_of(ElementType type) {
  switch (type) {
    case ElementType::f16:
    case ElementType::bf16:
      return 2;
    case ElementType::f32:
      return 4;
    case ElementType::f64:
      return 8;
  }
  return 0;
}

void to_floats(std::span<const std::byte> bytes, ElementType type, std::span<float> values) {
  require(bytes.size() == values.size() * size_of(type), "to_floats: {} bytes, expected {} (elements times their size)",
          bytes.size(), values.size() * size_of(type));
  switch (type) {
    case ElementType::f16:
      return convert_each<uint16_t>(bytes, values, float_of_half);
    case ElementType::bf16:
      return convert_each<uint16_t>(bytes, values, [](uint16_t word) { return BFloat16{word}.to_float(); });
    case ElementType::f32:
      return convert_each<uint32_t>(bytes, values, [](uint32_t word) { return std::bit_cast<float>(word); });
    case ElementType::f64:
      return convert_each<uint64_t>(bytes, values, [](uint64_t word) { return static_cast<float>(std::bit_cast<double>(word)); });
  }
}

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    const std::optional<int64_t> product = checked_product({count, extent});
    if (!product) return std::nullopt;
    count = *product;
  }
  return count;
}

std::string to_string(std::span<const int64_t> shape) { return raffia::to_string(shape.data(), shape.size()); }

}  // namespace raffia::internal
