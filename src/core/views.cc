#include "raffia/views.h"

#include <bit>
#include <cmath>

namespace raffia {

namespace {

// Rounds once, from double to bf16. Rounding to float first, to nearest, would round twice and break ties the wrong way. Rounding
// to odd (inexact results end in a 1 bit) preserves on which side of a tie the value is.
BFloat16 bf16_from_double(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return BFloat16::from_float(nearest);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;  // toward zero
  return BFloat16::from_float(std::bit_cast<float>(bits | 1U));
}

}  // namespace

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::f64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::u8:
      return "u8";
  }
  return "unknown";
}

std::string to_string(const int64_t* extents, size_t rank) {
  std::string text = "[";
  for (size_t i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(extents[i]);
  }
  return text + "]";
}

namespace detail {

double load_element(const void* data, DType dtype, int64_t offset) {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<const float*>(data)[offset]);
    case DType::bf16:
      return static_cast<double>(static_cast<const BFloat16*>(data)[offset].to_float());
    case DType::f64:
      return static_cast<const double*>(data)[offset];
    case DType::u8:
      return static_cast<double>(static_cast<const uint8_t*>(data)[offset]);
  }
  return 0.0;
}

void store_element(void* data, DType dtype, int64_t offset, double value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[offset] = static_cast<float>(value);
      break;
    case DType::bf16:
      static_cast<BFloat16*>(data)[offset] = bf16_from_double(value);
      break;
    case DType::f64:
      static_cast<double*>(data)[offset] = value;
      break;
    case DType::u8:
      static_cast<uint8_t*>(data)[offset] = static_cast<uint8_t>(value);
      break;
  }
}

}  // namespace detail
}  // namespace raffia
