#include "estimators/shared/running_samples.h"

#include <algorithm>

#include "kernels/sample_merge.h"

namespace raffia::internal {
namespace {

size_t columns(const RunningSamples::Shape& shape) { return round_up(shape.value_dim, 16); }
size_t padded(size_t samples) { return round_up(samples, kKeyBlock); }

}  // namespace

size_t RunningSamples::floats(const Shape& shape) {
  return padded(shape.samples) * shape.dim + round_up(shape.samples, 16) + round_up(shape.samples * shape.value_dim, 16);
}

size_t RunningSamples::scratch_floats(const Shape& shape) {
  return padded(shape.samples) * (columns(shape) + 1) + round_up(shape.samples, 16) +
         round_up(shape.samples * shape.value_dim, 16) +
         std::max(forward_scratch(shape.dim, shape.value_dim), pack_scratch(shape.dim, shape.value_dim));
}

RunningSamples::RunningSamples(const Shape& shape, const Rows& w, float* memory, float* scratch)
    : shape_(shape),
      w_(w),
      packed_w_(memory),
      log_weights_(packed_w_ + padded(shape.samples) * shape.dim),
      values_(log_weights_ + round_up(shape.samples, 16)) {
  const PackedKeys keys{.count = shape.samples, .dim = shape.dim, .value_dim = 0, .k = packed_w_, .v = packed_w_};
  for (size_t block = 0; block < blocks(); ++block) {
    pack_keys({.keys = keys, .block = block, .source = {.k = w, .v = w, .mask = {}}}, scratch);
  }
}

void RunningSamples::read(ForwardTask queries, size_t count, size_t present, float* scratch) const {
  float* v = scratch;
  float* bias = v + padded(shape_.samples) * columns(shape_);
  scratch = bias + padded(shape_.samples);
  const KeySource values{.k = w_,
                         .v = {values_, DType::f32, static_cast<int64_t>(shape_.value_dim), 1},
                         .mask = {.bias = {log_weights_, DType::f32, 1, 1}}};
  const PackedKeys values_alone{.count = present, .dim = 0, .value_dim = shape_.value_dim, .k = packed_w_, .v = v, .bias = bias};
  for (size_t block = 0; block < values_alone.blocks(); ++block) {
    pack_keys({.keys = values_alone, .block = block, .source = values}, scratch);
  }
  queries.keys = values_alone;
  queries.keys.dim = shape_.dim;
  queries.visible = Visibility::all(count, present);
  queries.masked = true;
  queries.resume = true;
  for (queries.first = 0; queries.first < count; queries.first += queries.count) {
    queries.count = std::min(kQueryBlock, count - queries.first);
    softmax_forward(queries, scratch);
  }
}

void RunningSamples::add(const KeySource& keys, size_t count, size_t present, float scale, float log_decay, const float* mixture,
                         float* scratch) const {
  float* values = scratch;
  float* log_weights = values + round_up(shape_.samples * shape_.value_dim, 16);
  scratch = log_weights + round_up(shape_.samples, 16);
  ForwardTask task{.keys = {.count = count, .dim = shape_.dim, .value_dim = shape_.value_dim},
                   .unpacked = &keys,
                   .masked = true,
                   .visible = Visibility::all(present, count),
                   .scale = scale,
                   .q = w_,
                   .out = {values, DType::f32, static_cast<int64_t>(shape_.value_dim), 1},
                   .logsumexp = {log_weights, DType::f32, 1, 1}};
  for (; task.first < present; task.first += task.count) {
    task.count = std::min(kQueryBlock, present - task.first);
    softmax_forward(task, scratch);
  }
  merge_samples({.count = present,
                 .value_dim = shape_.value_dim,
                 .log_decay = log_decay,
                 .log_weights = log_weights_,
                 .values = values_,
                 .added = log_weights,
                 .mixture = mixture,
                 .added_values = values});
}

void own_window_turn(const WindowedCall& call, const Stretch& stretch, int64_t head, size_t begin, size_t end, float* scratch) {
  const SoftmaxPart part = own_window_part(call, stretch);
  const PartSequence& s = part.sequences[0];
  const int64_t g = head / call.group;
  const KeySource source{rows_of<Rows>(part.k, 0, 0, g), rows_of<Rows>(part.v, 0, 0, g), stretch.mask()};
  ForwardTask task{
      .keys = {.count = s.visible.keys, .dim = static_cast<size_t>(call.dim), .value_dim = static_cast<size_t>(call.value_dim)},
      .unpacked = &source,
      .masked = !stretch.valid.absent(),
      .visible = s.visible,
      .first = begin,
      .scale = part.scale,
      .q = rows_of<Rows>(part.q, 0, s.first_query, head),
      .out = rows_of<MutRows>(stretch.out, 0, s.first_query, head),
      .logsumexp = column_of<MutRows>(stretch.logsumexp, 0, s.first_query, head)};
  for (; task.first < end; task.first += task.count) {
    task.count = std::min(kQueryBlock, end - task.first);
    softmax_forward(task, scratch);
  }
}

void for_head_ranges(const WindowedCall& call, const std::function<void(int64_t begin, int64_t end)>& body) {
  const Workers workers = call.workers();
  const int64_t ranges = std::min<int64_t>(workers.count(), call.heads);
  workers.run(ranges, Scratch(workers.count(), 0),
              [&](int64_t range, float*) { body(call.heads * range / ranges, call.heads * (range + 1) / ranges); });
}

}  // namespace raffia::internal
