// Byte pair encoding of one word: adjacent pieces whose union is a piece of the vocabulary are merged, best pair first.
#ifndef RAFFIA_IO_TOKENIZERS_PAIR_MERGES_H_
#define RAFFIA_IO_TOKENIZERS_PAIR_MERGES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <tuple>
#include <vector>

namespace raffia::internal {

struct PairMerge {
  int64_t rank;  // the lowest rank merges first; among equal ranks the leftmost pair
  int32_t id;    // what the pair becomes
};

// find(left, right) -> std::optional<PairMerge>, for ids that are neighbours. O(n log n) calls and steps for n ids.
template <typename Find>
void merge_pairs(std::vector<int32_t>& ids, const Find& find) {
  constexpr size_t kNone = SIZE_MAX;
  struct Link {
    size_t before, after;
  };
  struct Candidate {
    int64_t rank;
    size_t at;  // of the left one
    int32_t left, right, merged;
    bool operator>(const Candidate& other) const { return std::tie(rank, at) > std::tie(other.rank, other.at); }
  };
  if (ids.size() < 2) return;
  std::vector<Link> links(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) links[i] = {i == 0 ? kNone : i - 1, i + 1 == ids.size() ? kNone : i + 1};

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto propose = [&](size_t at) {
    const int32_t left = ids[at], right = ids[links[at].after];
    if (const std::optional<PairMerge> merge = find(left, right)) candidates.push({merge->rank, at, left, right, merge->id});
  };
  for (size_t i = 0; i + 1 < ids.size(); ++i) propose(i);

  constexpr int32_t kGone = -1;
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    const size_t right = links[best.at].after;
    // Skip pairs of which one side was merged in the meantime.
    if (ids[best.at] != best.left || right == kNone || ids[right] != best.right) continue;
    ids[best.at] = best.merged;
    ids[right] = kGone;
    links[best.at].after = links[right].after;
    if (links[right].after != kNone) links[links[right].after].before = best.at;
    if (links[best.at].before != kNone) propose(links[best.at].before);
    if (links[best.at].after != kNone) propose(best.at);
  }
  std::erase(ids, kGone);
}

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_PAIR_MERGES_H_
