#include "core/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace raffia::internal {
namespace {

constexpr size_t kShortestBeginning = 3;  // two letters are the beginning of too many names

bool is_beginning(std::string_view word, std::string_view name) {
  return word.size() >= kShortestBeginning && name.starts_with(word);
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the table for the beginnings of `a` that are two letters shorter, one letter shorter, and this one.
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, row);
  }
  return last[b.size()];
}

std::string suggestion(std::string_view word, std::span<const std::string> known) {
  // Up to a third of the letters may be wrong; with more, a suggestion would not be useful.
  const size_t max = std::max<size_t>(1, word.size() / 3);
  const auto cost = [word, max](const std::string& name) {
    if (is_beginning(word, name)) return size_t{0};
    const size_t longer = word.size() > name.size() ? word.size() - name.size() : name.size() - word.size();
    return longer > max ? longer : edit_distance(word, name);  // a word of a million letters from a file costs no time
  };
  const auto nearest = std::ranges::min_element(known, {}, cost);
  if (nearest == known.end() || cost(*nearest) > max) return "";
  return fmt::format(": did you mean '{}'?", *nearest);
}

}  // namespace raffia::internal
