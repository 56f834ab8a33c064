#include "torch/train/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "raffia/random.h"
#include "torch/libtorch.h"

namespace raffia::internal::train {
namespace {

constexpr int32_t kPad = Tokenizer::kPad, kUnknown = Tokenizer::kUnknown, kBegin = Tokenizer::kBegin, kEnd = Tokenizer::kEnd;

std::span<const int64_t> share_of(std::span<const int64_t> examples, const Shard& shard) {
  const auto count = static_cast<int64_t>(examples.size());
  return examples.subspan(static_cast<size_t>(shard.begin(count)), static_cast<size_t>(shard.end(count) - shard.begin(count)));
}

std::vector<int64_t> numbers(int64_t begin, int64_t end) {
  std::vector<int64_t> all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

std::vector<int64_t> checked_range(std::string_view function, int64_t begin, int64_t end, int64_t size) {
  require(0 <= begin && begin <= end && end <= size, "{}: examples {} to {}, expected a part of 0 to {}", function, begin, end,
          size);
  return numbers(begin, end);
}

// Lengths within an eighth of each other are as good as equal: batches of them hardly pad, and still mix well.
int64_t bucket_of(int64_t length) {
  const auto size = static_cast<uint64_t>(std::max<int64_t>(length, 1));
  const uint64_t step = std::max<uint64_t>(4, std::bit_floor(size) / 8);
  return static_cast<int64_t>((size + step - 1) / step * step);
}

void shuffle_with(RandomStream& random, std::vector<int64_t>& values) {
  for (size_t left = values.size(); left > 1; --left) {
    const auto chosen = static_cast<size_t>(random.next_uniform() * static_cast<double>(left));
    std::swap(values[left - 1], values[chosen]);
  }
}

// [rows, longest]: of each row `before`, its ids and `after` (ids below 0: nothing), then `fill`.
struct Around {
  int64_t before = -1, after = -1;
  int64_t fill = kPad;
};

Tensor stacked(const Sequences& sequences, std::span<const int64_t> rows, const Around& around) {
  const int64_t extra = (around.before >= 0 ? 1 : 0) + (around.after >= 0 ? 1 : 0);
  int64_t longest = 1;
  for (const int64_t row : rows) {
    longest = std::max(longest, static_cast<int64_t>(sequences[static_cast<size_t>(row)].size()) + extra);
  }
  Tensor ids = torch::full({static_cast<int64_t>(rows.size()), longest}, around.fill, torch::kInt64);
  int64_t* out = ids.data_ptr<int64_t>();
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<int32_t>& sequence = sequences[static_cast<size_t>(rows[i])];
    int64_t* at = out + static_cast<int64_t>(i) * longest;
    if (around.before >= 0) *at++ = around.before;
    at = std::copy(sequence.begin(), sequence.end(), at);
    if (around.after >= 0) *at = around.after;
  }
  return ids;
}

Tensor labels_at(const std::vector<int64_t>& labels, std::span<const int64_t> rows) {
  Tensor result = torch::empty({static_cast<int64_t>(rows.size())}, torch::kInt64);
  for (size_t i = 0; i < rows.size(); ++i) result.data_ptr<int64_t>()[i] = labels[static_cast<size_t>(rows[i])];
  return result;
}

// Removes the pairs that cannot be learned from.
void keep_usable(Sequences& sources, Sequences& targets, int64_t longest) {
  require(sources.size() == targets.size(), "PairBatches: {} sources and {} targets, expected the same number", sources.size(),
          targets.size());
  size_t kept = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto length = static_cast<int64_t>(std::max(sources[i].size(), targets[i].size()));
    if (sources[i].empty() || targets[i].empty() || (longest > 0 && length > longest)) continue;
    std::swap(sources[kept], sources[i]);
    std::swap(targets[kept], targets[i]);
    ++kept;
  }
  require(kept > 0, "PairBatches: none of the {} pairs can be used (longest = {})", sources.size(), longest);
  sources.resize(kept);
  targets.resize(kept);
}

std::vector<int64_t> lengths_of(const Sequences& first, const Sequences& second, bool sum) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < first.size(); ++i) {
    const size_t other = second.empty() ? 0 : second[i].size();
    lengths.push_back(static_cast<int64_t>(sum ? first[i].size() + other : std::max(first[i].size(), other)));
  }
  return lengths;
}

Sequences cut_texts(Sequences texts, int64_t longest) {
  for (std::vector<int32_t>& text : texts) {
    if (longest > 0 && static_cast<int64_t>(text.size()) > longest) text.resize(static_cast<size_t>(longest));
    if (text.empty()) text.push_back(kUnknown);
  }
  return texts;
}

}  // namespace

void Shard::check() const {
  require(world >= 1 && rank >= 0 && rank < world, "Shard: rank {} of {} processes, expected 0 to {}", rank, world, world - 1);
}

TokenStreams::TokenStreams(std::vector<int32_t> ids, int64_t batch, int64_t segment, Shard shard)
    : ids_(std::move(ids)), batch_(batch), segment_(segment) {
  shard.check();
  require(batch >= shard.world, "TokenStreams: batch is {}, expected at least one row for each of {} processes", batch,
          shard.world);
  require(segment >= 1, "TokenStreams: segment is {}, expected at least 1", segment);
  first_row_ = shard.begin(batch);
  last_row_ = shard.end(batch);
  steps_ = (static_cast<int64_t>(ids_.size()) - 1) / batch / segment;
  require(!ids_.empty() && steps_ >= 1, "TokenStreams: the text has {} tokens, expected more than batch x segment = {} x {} = {}",
          ids_.size(), batch, segment, batch * segment);
}

TokenStreams::Batch TokenStreams::at(int64_t step) const {
  require(step >= 0, "TokenStreams: step is {}, expected at least 0", step);
  const int64_t epoch = step / steps_, place = step % steps_;
  const int64_t stream = (static_cast<int64_t>(ids_.size()) - 1) / batch_, spare = stream - steps_ * segment_;
  constexpr double kGoldenRatio = 0.6180339887498949;  // multiples of it spread evenly over the unit interval
  const double turn = static_cast<double>(epoch) * kGoldenRatio;
  const auto offset = static_cast<int64_t>((turn - std::floor(turn)) * static_cast<double>(spare + 1));
  Batch batch = {.input = torch::empty({rows(), segment_}, torch::kInt64),
                 .target = torch::empty({rows(), segment_}, torch::kInt64),
                 .first_of_epoch = place == 0};
  int64_t* input = batch.input.data_ptr<int64_t>();
  int64_t* target = batch.target.data_ptr<int64_t>();
  for (int64_t row = first_row_; row < last_row_; ++row, input += segment_, target += segment_) {
    const int32_t* from = ids_.data() + row * stream + offset + place * segment_;
    std::copy_n(from, segment_, input);
    std::copy_n(from + 1, segment_, target);
  }
  return batch;
}

ExampleOrder::ExampleOrder(std::vector<int64_t> lengths, int64_t batch, int64_t tokens, uint64_t seed)
    : buckets_(std::move(lengths)), seed_(seed) {
  require(!buckets_.empty(), "ExampleOrder: there are no examples");
  require(batch >= 1 && tokens >= 0, "ExampleOrder: batch is {} and tokens {}, expected at least 1 and 0", batch, tokens);
  for (int64_t& length : buckets_) length = bucket_of(length);
  std::vector<int64_t> sorted = buckets_;
  std::ranges::sort(sorted);
  int64_t begin = 0;
  for (int64_t end = 1; end <= static_cast<int64_t>(sorted.size()); ++end) {
    const bool last = end == static_cast<int64_t>(sorted.size());
    const int64_t with_next = end - begin + 1;
    const bool full = tokens > 0 ? last || with_next * sorted[static_cast<size_t>(end)] > tokens : with_next > batch;
    if (last || full) ends_.push_back(begin = end);
  }
}

void ExampleOrder::shuffle(int64_t epoch) const {
  RandomStream random({.seed = seed_, .layer = static_cast<uint32_t>(epoch), .head = static_cast<uint32_t>(epoch >> 32)});
  examples_ = numbers(0, static_cast<int64_t>(buckets_.size()));
  shuffle_with(random, examples_);
  std::ranges::stable_sort(examples_, {}, [this](int64_t example) { return buckets_[static_cast<size_t>(example)]; });
  batches_ = numbers(0, steps_per_epoch());
  shuffle_with(random, batches_);
  epoch_ = epoch;
}

std::span<const int64_t> ExampleOrder::at(int64_t step) const {
  require(step >= 0, "ExampleOrder: step is {}, expected at least 0", step);
  if (const int64_t epoch = step / steps_per_epoch(); epoch != epoch_) shuffle(epoch);
  const auto batch = static_cast<size_t>(batches_[static_cast<size_t>(step % steps_per_epoch())]);
  const int64_t begin = batch == 0 ? 0 : ends_[batch - 1];
  return std::span(examples_).subspan(static_cast<size_t>(begin), static_cast<size_t>(ends_[batch] - begin));
}

// Members are made in the order of their declaration: the order of examples sees the pairs that were kept.
PairBatches::PairBatches(Sequences sources, Sequences targets, const BatchOptions& options, Shard shard)
    : sources_((keep_usable(sources, targets, options.longest), std::move(sources))),
      targets_(std::move(targets)),
      order_(lengths_of(sources_, targets_, false), options.batch, options.tokens, options.seed),
      shard_(shard) {
  shard.check();
}

PairBatches::Batch PairBatches::gather(std::span<const int64_t> pairs) const {
  return {.source = stacked(sources_, pairs, {}),
          .target = stacked(targets_, pairs, {.before = kBegin}),
          .expected = stacked(targets_, pairs, {.after = kEnd, .fill = kIgnore})};
}

PairBatches::Batch PairBatches::at(int64_t step) const { return gather(share_of(order_.at(step), shard_)); }

PairBatches::Batch PairBatches::range(int64_t begin, int64_t end) const {
  return gather(checked_range("PairBatches::range", begin, end, size()));
}

LabelledTextBatches::LabelledTextBatches(Sequences texts, Sequences seconds, std::vector<int64_t> labels,
                                         const BatchOptions& options, Shard shard)
    : texts_(cut_texts(std::move(texts), options.longest)),
      seconds_(cut_texts(std::move(seconds), options.longest)),
      labels_(std::move(labels)),
      order_((require(texts_.size() == labels_.size() && (seconds_.empty() || seconds_.size() == texts_.size()),
                      "LabelledTextBatches: {} texts, {} second texts and {} labels, expected the same number of each",
                      texts_.size(), seconds_.size(), labels_.size()),
              lengths_of(texts_, seconds_, true)),
             options.batch, options.tokens, options.seed),
      shard_(shard) {
  shard.check();
}

LabelledTextBatches::Batch LabelledTextBatches::gather(std::span<const int64_t> examples) const {
  return {.ids = stacked(texts_, examples, {}),
          .second = seconds_.empty() ? Tensor() : stacked(seconds_, examples, {}),
          .labels = labels_at(labels_, examples)};
}

LabelledTextBatches::Batch LabelledTextBatches::at(int64_t step) const { return gather(share_of(order_.at(step), shard_)); }

LabelledTextBatches::Batch LabelledTextBatches::range(int64_t begin, int64_t end) const {
  return gather(checked_range("LabelledTextBatches::range", begin, end, size()));
}

ImageBatches::ImageBatches(LabelledImages images, const BatchOptions& options, Shard shard)
    : images_(std::move(images)),
      order_(std::vector<int64_t>(static_cast<size_t>(images_.count), 1), options.batch, 0, options.seed),
      shard_(shard) {
  shard.check();
}

ImageBatches::Batch ImageBatches::gather(std::span<const int64_t> examples) const {
  const int64_t pixels = images_.channels * images_.size * images_.size;
  Batch batch = {.pixels = torch::empty({static_cast<int64_t>(examples.size()), images_.channels, images_.size, images_.size}),
                 .labels = labels_at(images_.labels, examples)};
  float* out = batch.pixels.data_ptr<float>();
  for (const int64_t example : examples) {
    const uint8_t* from = images_.pixels.data() + example * pixels;
    out = std::transform(from, from + pixels, out, [](uint8_t byte) { return static_cast<float>(byte) / 255; });
  }
  return batch;
}

ImageBatches::Batch ImageBatches::at(int64_t step) const { return gather(share_of(order_.at(step), shard_)); }

ImageBatches::Batch ImageBatches::range(int64_t begin, int64_t end) const {
  return gather(checked_range("ImageBatches::range", begin, end, size()));
}

}  // namespace raffia::internal::train
