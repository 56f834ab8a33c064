// Sequences of multi-query associative recall.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "raffia/random.h"
#include "torch/libtorch.h"
#include "torch/train/data.h"

namespace raffia::internal::train {
namespace {

int64_t below(RandomStream& random, int64_t bound) {
  return static_cast<int64_t>(random.next_uniform() * static_cast<double>(bound));
}

// The first `count` of a random order of 0 .. bound - 1.
std::vector<int64_t> choose(RandomStream& random, int64_t count, int64_t bound) {
  std::vector<int64_t> all(static_cast<size_t>(bound));
  std::iota(all.begin(), all.end(), 0);
  for (int64_t i = 0; i < count; ++i)
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(i + below(random, bound - i))]);
  all.resize(static_cast<size_t>(count));
  return all;
}

// A query stands behind all pairs, and its value within the sequence.
bool can_ask(const RecallOptions& options, int64_t pair, int64_t distance) {
  const int64_t at = 2 * pair + distance;
  return at >= 2 * options.pairs && at + 1 < options.length;
}

// One row of a batch.
struct Row {
  int64_t *input, *target, *distance;  // [T]
};

void fill_row(const RecallOptions& options, RandomStream& random, const Row& row) {
  constexpr int64_t kSpecial = 4;
  const int64_t first_key = kSpecial + options.noise, first_value = first_key + options.keys;
  const std::vector<int64_t> keys = choose(random, options.pairs, options.keys);
  std::vector<int64_t> values(keys.size());
  for (int64_t& value : values) value = first_value + below(random, options.values);
  const auto put_pair = [&](int64_t at, int64_t pair) {
    row.input[at] = first_key + keys[static_cast<size_t>(pair)];
    row.input[at + 1] = values[static_cast<size_t>(pair)];
  };

  std::fill_n(row.input, options.length, -1);  // free
  std::fill_n(row.target, options.length, kIgnore);
  std::fill_n(row.distance, options.length, 0);
  for (int64_t pair = 0; pair < options.pairs; ++pair) put_pair(2 * pair, pair);

  // Pairs in random order, distances in turn: a pair that does not fit at one distance is tried at the next ones.
  std::vector<int64_t> waiting = choose(random, options.pairs, options.pairs);
  const auto distances = static_cast<int64_t>(options.distances.size());
  const int64_t max = options.queries == 0 ? options.pairs : options.queries;
  int64_t asked = 0, misses = 0;
  for (int64_t turn = below(random, distances); asked < max && misses < distances && !waiting.empty(); ++turn) {
    const int64_t distance = options.distances[static_cast<size_t>(turn % distances)];
    const auto fits = std::ranges::find_if(waiting, [&](int64_t pair) {
      const int64_t at = 2 * pair + distance;
      return can_ask(options, pair, distance) && row.input[at] < 0 && row.input[at + 1] < 0;
    });
    if (fits == waiting.end()) {
      ++misses;
      continue;
    }
    const int64_t at = 2 * *fits + distance;
    put_pair(at, *fits);
    row.target[at] = row.input[at + 1];
    row.distance[at] = distance;
    waiting.erase(fits);
    ++asked;
    misses = 0;
  }
  for (int64_t at = 0; at < options.length; ++at) {
    if (row.input[at] < 0) row.input[at] = kSpecial + below(random, options.noise);
  }
}

}  // namespace

RecallTask::RecallTask(const RecallOptions& options, Shard shard) : options_(options), shard_(shard) {
  shard.check();
  require(options.batch >= shard.world, "RecallTask: batch is {}, expected at least one row for each of {} processes",
          options.batch, shard.world);
  require(options.pairs >= 1 && options.pairs <= options.keys, "RecallTask: {} pairs of distinct keys, expected 1 to {} (keys)",
          options.pairs, options.keys);
  require(options.values >= 1 && options.noise >= 1, "RecallTask: {} values and {} noise tokens, expected at least 1 of each",
          options.values, options.noise);
  require(options.queries >= 0 && options.queries <= options.pairs, "RecallTask: {} queries, expected 0 to {} (pairs)",
          options.queries, options.pairs);
  require(!options.distances.empty(), "RecallTask: no distances, expected at least one");
  for (const int64_t distance : options.distances) {
    bool possible = false;
    for (int64_t pair = 0; pair < options.pairs && !possible; ++pair) possible = can_ask(options, pair, distance);
    require(distance >= 2 && possible, "RecallTask: distance {} does not occur in {} tokens with {} pairs, expected 2 to {}",
            distance, options.length, options.pairs, options.length - 2);
  }
}

RecallTask::Batch RecallTask::at(int64_t step) const {
  require(step >= 0, "RecallTask: step is {}, expected at least 0", step);
  const int64_t first = shard_.begin(options_.batch), last = shard_.end(options_.batch);
  const auto make = [&] { return torch::empty({last - first, options_.length}, torch::kInt64); };
  Batch batch = {.input = make(), .target = make(), .distance = make()};
  for (int64_t row = first; row < last; ++row) {
    // Rows and steps name the stream, whatever process makes the row.
    RandomStream random({.seed = options_.seed,
                         .layer = static_cast<uint32_t>(step),
                         .head = static_cast<uint32_t>(row),
                         .draw = static_cast<uint32_t>(step >> 32)});
    const int64_t at = (row - first) * options_.length;
    fill_row(
        options_, random,
        {batch.input.data_ptr<int64_t>() + at, batch.target.data_ptr<int64_t>() + at, batch.distance.data_ptr<int64_t>() + at});
  }
  return batch;
}

}  // namespace raffia::internal::train
