// Training data as functions of the step: the same step always gives the same batch. So the position in the data is the step
// number, and a run resumed at step n continues as if it had not stopped.
//
// Batch sizes are global, over all processes; each process, one of `world`, gets its own rows. Ids are int64 on the CPU; targets
// that are not predicted are kIgnore.
#ifndef RAFFIA_TORCH_TRAIN_DATA_H_
#define RAFFIA_TORCH_TRAIN_DATA_H_

#include <cstdint>
#include <span>
#include <vector>

#include "io/data/datasets.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"
#include "torch/ops/cross_entropy.h"

namespace raffia::internal::train {

using at::Tensor;

constexpr int64_t kIgnore = ops::kIgnoredTarget;

// One process of several, and the part of `count` rows that it has.
struct Shard {
  int64_t rank = 0, world = 1;

  int64_t begin(int64_t count) const { return count * rank / world; }
  int64_t end(int64_t count) const { return count * (rank + 1) / world; }
  void check() const;  // throws InvalidArgument
};

// A text as `batch` parallel streams: stream r is the r-th part of the text, and each step reads the next `segment` tokens of
// every stream, so that states can be carried from step to step. The rest, less than a segment of each stream, is at the end in
// the first epoch and elsewhere in others: streams then begin a little later.
class TokenStreams {
 public:
  // Throws InvalidArgument for a text that does not fill one segment of every stream.
  TokenStreams(std::vector<int32_t> ids, int64_t batch, int64_t segment, Shard shard = {});

  struct Batch {
    Tensor input, target;         // [B, T]: target is input shifted by one token
    bool first_of_epoch = false;  // the streams start again: carried states must be reset
  };
  Batch at(int64_t step) const;

  int64_t steps_per_epoch() const { return steps_; }
  int64_t rows() const { return last_row_ - first_row_; }        // B of this process
  int64_t tokens_per_step() const { return batch_ * segment_; }  // of all processes

 private:
  std::vector<int32_t> ids_;
  int64_t batch_, segment_, first_row_, last_row_;
  int64_t steps_;
};

// The order of examples: each once per epoch, those of similar length together, with a new shuffle for each epoch.
// at() caches the order of the last epoch: not thread-safe.
class ExampleOrder {
 public:
  // Batches of `batch` examples; or, if tokens > 0, of as many as fit in `tokens` tokens including padding (at least one).
  // The number of batches is the same in every epoch.
  ExampleOrder(std::vector<int64_t> lengths, int64_t batch, int64_t tokens, uint64_t seed);

  std::span<const int64_t> at(int64_t step) const;  // numbers of examples; valid until the next call
  int64_t steps_per_epoch() const { return static_cast<int64_t>(ends_.size()); }

 private:
  void shuffle(int64_t epoch) const;

  std::vector<int64_t> buckets_;  // by example: its length, rounded up a little
  std::vector<int64_t> ends_;     // of batches, among examples in the order of buckets
  uint64_t seed_;
  mutable int64_t epoch_ = -1;
  mutable std::vector<int64_t> examples_, batches_;
};

struct BatchOptions {
  int64_t batch = 32;   // examples
  int64_t tokens = 0;   // if > 0, the size of batches instead, see ExampleOrder
  int64_t longest = 0;  // if > 0: longer sequences are truncated (pairs of sentences: skipped)
  uint64_t seed = 1;
};

using Sequences = std::vector<std::vector<int32_t>>;

// Pairs of sentences to translate.
class PairBatches {
 public:
  // Ids without begin and end. Pairs with an empty side are skipped.
  PairBatches(Sequences sources, Sequences targets, const BatchOptions& options = {}, Shard shard = {});

  struct Batch {
    Tensor source;    // [B, S], padded with kPad
    Tensor target;    // [B, T]: kBegin and the sentence, padded with kPad
    Tensor expected;  // [B, T]: the sentence and kEnd, padded with kIgnore
  };
  Batch at(int64_t step) const;                   // may have no rows if there are fewer pairs than processes
  Batch range(int64_t begin, int64_t end) const;  // these pairs in the order of the files: for evaluation
  int64_t size() const { return static_cast<int64_t>(sources_.size()); }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }

 private:
  Batch gather(std::span<const int64_t> pairs) const;

  Sequences sources_, targets_;
  ExampleOrder order_;
  Shard shard_;
};

// Texts, or pairs of texts, with a label each.
class LabelledTextBatches {
 public:
  // `seconds` is empty, or as long as `texts`. An empty text is one kUnknown.
  LabelledTextBatches(Sequences texts, Sequences seconds, std::vector<int64_t> labels, const BatchOptions& options = {},
                      Shard shard = {});

  struct Batch {
    Tensor ids;     // [B, T], padded with kPad
    Tensor second;  // [B, T2] likewise; undefined without pairs
    Tensor labels;  // [B]
  };
  Batch at(int64_t step) const;
  Batch range(int64_t begin, int64_t end) const;
  int64_t size() const { return static_cast<int64_t>(texts_.size()); }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }

 private:
  Batch gather(std::span<const int64_t> examples) const;

  Sequences texts_, seconds_;
  std::vector<int64_t> labels_;
  ExampleOrder order_;
  Shard shard_;
};

class ImageBatches {
 public:
  ImageBatches(LabelledImages images, const BatchOptions& options = {}, Shard shard = {});

  struct Batch {
    Tensor pixels;  // [B, channels, size, size], 0..1
    Tensor labels;  // [B]
  };
  Batch at(int64_t step) const;
  Batch range(int64_t begin, int64_t end) const;
  int64_t size() const { return images_.count; }
  int64_t steps_per_epoch() const { return order_.steps_per_epoch(); }

 private:
  Batch gather(std::span<const int64_t> examples) const;

  LabelledImages images_;
  ExampleOrder order_;
  Shard shard_;
};

// Multi-query associative recall: how many pairs an attention can remember, and over which distance. A sequence is
//
//   k1 v1 k2 v2 .. kP vP  n n n  k7 v7  n n n n  k2 v2  n ..
//
// P pairs of distinct random keys and any values; then noise with queries in it: a key again, whose next token must be its value.
// The distance from pair to query (key to key) is one of `distances`; each pair is queried at most once. Targets are kIgnore
// except at the keys of queries. Ids: 4 special ones (not used), then noise, keys, values.
struct RecallOptions {
  int64_t batch = 32;    // of all processes
  int64_t length = 512;  // T
  int64_t pairs = 16;
  int64_t queries = 0;                             // maximum per sequence; 0: as many as pairs. Fewer if they do not fit
  std::vector<int64_t> distances = {16, 64, 256};  // used in turn
  int64_t keys = 128, values = 128, noise = 64;    // sizes of the alphabets
  uint64_t seed = 1;
};

class RecallTask {
 public:
  // Throws InvalidArgument if a distance cannot occur in a sequence of this length.
  explicit RecallTask(const RecallOptions& options, Shard shard = {});

  struct Batch {
    Tensor input, target;  // [B, T]
    Tensor distance;       // [B, T]: of the query at this position; 0: no query
  };
  Batch at(int64_t step) const;
  int64_t vocabulary() const { return 4 + options_.noise + options_.keys + options_.values; }
  const RecallOptions& options() const { return options_; }

 private:
  RecallOptions options_;
  Shard shard_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DATA_H_
