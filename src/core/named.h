// Names of values, such as those of an enum, as users write and read them.
#ifndef RAFFIA_CORE_NAMED_H_
#define RAFFIA_CORE_NAMED_H_

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace raffia::internal {

template <typename Value>
struct Named {
  std::string_view name;
  Value value;
};

template <typename Value, size_t kCount>
using Names = Named<Value>[kCount];

template <typename Value, size_t kCount>
std::string_view name_in(const Names<Value, kCount>& names, Value value) {
  return std::find_if(std::begin(names), std::end(names), [value](const auto& entry) { return entry.value == value; })->name;
}

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_NAMED_H_
