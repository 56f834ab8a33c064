#include "core/check.h"

#include <string>

namespace raffia::internal {

void throw_wrong_shape(std::string_view function, std::string_view argument, const int64_t* found, const int64_t* expected,
                       size_t rank, std::string_view why) {
  throw InvalidArgument(fmt::format("{}: {} has shape {}, expected {} ({})", function, argument, to_string(found, rank),
                                    to_string(expected, rank), why));
}

void throw_wrong_dtype(std::string_view function, std::string_view argument, DType found, std::initializer_list<DType> expected) {
  std::string names;
  for (DType dtype : expected) {
    if (!names.empty()) names += " or ";
    names += name_of(dtype);
  }
  throw InvalidArgument(fmt::format("{}: {} has element type {}, expected {}", function, argument, name_of(found), names));
}

void throw_no_data(std::string_view function, std::string_view argument, const int64_t* shape, size_t rank) {
  throw InvalidArgument(
      fmt::format("{}: {} has shape {} and a null pointer, expected data", function, argument, to_string(shape, rank)));
}

std::optional<int64_t> checked_product(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  return product;
}

}  // namespace raffia::internal
