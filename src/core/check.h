// Checks of arguments. All throw InvalidArgument with a message that names function, argument, what was found and expected.
#ifndef RAFFIA_CORE_CHECK_H_
#define RAFFIA_CORE_CHECK_H_

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "raffia/error.h"
#include "raffia/views.h"

namespace raffia::internal {

// require(count >= 1, "FeatureMap: count is {}, expected at least 1", count);
template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) [[unlikely]] {
    throw InvalidArgument(fmt::format(format, std::forward<Args>(args)...));
  }
}

[[noreturn]] void throw_wrong_shape(std::string_view function, std::string_view argument, const int64_t* found,
                                    const int64_t* expected, size_t rank, std::string_view why);
[[noreturn]] void throw_wrong_dtype(std::string_view function, std::string_view argument, DType found,
                                    std::initializer_list<DType> expected);
[[noreturn]] void throw_no_data(std::string_view function, std::string_view argument, const int64_t* shape, size_t rank);

// `why` says where the expected extents come from: "batch and heads of k, length of k".
// Also throws for a view of the right shape that has elements but a null pointer.
template <size_t Rank, bool kMutable>
void require_shape(std::string_view function, std::string_view argument, const detail::BasicView<Rank, kMutable>& view,
                   const std::type_identity_t<Extents<Rank>>& expected, std::string_view why) {
  if (view.shape() != expected) [[unlikely]] {
    throw_wrong_shape(function, argument, view.shape().data(), expected.data(), Rank, why);
  }
  if (view.data() == nullptr && view.size() > 0) [[unlikely]] {
    throw_no_data(function, argument, view.shape().data(), Rank);
  }
}

template <size_t Rank, bool kMutable>
void require_dtype(std::string_view function, std::string_view argument, const detail::BasicView<Rank, kMutable>& view,
                   std::initializer_list<DType> expected) {
  for (DType dtype : expected) {
    if (view.dtype() == dtype) return;
  }
  throw_wrong_dtype(function, argument, view.dtype(), expected);
}

// The product of sizes that are not negative, or nullopt if it does not fit an int64_t.
std::optional<int64_t> checked_product(std::initializer_list<int64_t> sizes);

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_CHECK_H_
