// Splits text at separators.
#ifndef RAFFIA_CORE_SPLIT_H_
#define RAFFIA_CORE_SPLIT_H_

#include <algorithm>
#include <string_view>
#include <vector>

namespace raffia::internal {

// The parts between separators, including empty ones: always one more than there are separators.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_SPLIT_H_
