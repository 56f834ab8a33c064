#include "estimators/shared/running_samples.h"

#include <algorithm>

#include "estimators/shared/sample_states.h"

namespace raffia::internal {
size_t RunningSamples::floats(const Shape& shape) {
  return round_up(shape.samples, kKeyBlock) * (shape.dim + round_up(shape.value_dim, 16) + 1);
}

size_t RunningSamples::scratch_floats(const Shape& shape) {
  return round_up(std::max({forward_scratch(shape.dim, shape.value_dim), pack_scratch(shape.dim, shape.value_dim),
                            sample_add_scratch(shape.dim, shape.value_dim)}),
                  16);
}

RunningSamples::RunningSamples(const Shape& shape, const Rows& w, float* memory, float* scratch)
    : packed_{.count = shape.samples, .dim = shape.dim, .value_dim = shape.value_dim, .w = memory} {
  const size_t rows = packed_.blocks() * kKeyBlock;
  packed_.values = packed_.w + rows * packed_.dim;
  packed_.log_weights = packed_.values + rows * packed_.value_columns();
  std::fill_n(packed_.w, rows * packed_.dim, 0.0F);
  std::fill_n(packed_.values, rows * packed_.value_columns(), 0.0F);
  std::fill_n(packed_.log_weights, rows, kNone);
  const PackedKeys keys{.count = packed_.count, .dim = packed_.dim, .value_dim = 0, .k = packed_.w, .v = packed_.w};
  for (size_t block = 0; block < packed_.blocks(); ++block) {
    pack_keys({.keys = keys, .block = block, .source = {.k = w, .v = w, .mask = {}}}, scratch);
  }
}

namespace {

// Sixteen columns of the value of sample `s`, from column `c` on.
float* columns_of(const PackedSamples& samples, size_t s, size_t c) {
  return samples.values + s / kKeyBlock * kKeyBlock * samples.value_columns() + c * kKeyBlock + s % kKeyBlock * 16;
}

}  // namespace

void RunningSamples::set_value(size_t s, const float* value) const {
  for (size_t c = 0; c < packed_.value_dim; c += 16) {
    std::copy_n(value + c, std::min<size_t>(16, packed_.value_dim - c), columns_of(packed_, s, c));
  }
}

void RunningSamples::copy_value(size_t s, float* value) const {
  for (size_t c = 0; c < packed_.value_dim; c += 16) {
    std::copy_n(columns_of(packed_, s, c), std::min<size_t>(16, packed_.value_dim - c), value + c);
  }
}

void RunningSamples::read(ForwardTask queries, size_t count, size_t present, float* scratch) const {
  queries.keys = packed_.keys(present);
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
  for (size_t first = 0; first < count; first += kSampleTokens) {
    add_to_samples({.samples = packed_,
                    .present = present,
                    .keys = keys,
                    .first = first,
                    .count = std::min(kSampleTokens, count - first),
                    .scale = scale,
                    .log_decay = first == 0 ? log_decay : 0.0F,
                    .mixture = mixture},
                   scratch);
  }
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

void prefetch_window(const WindowedCall& call, const Stretch& stretch, int64_t head, int64_t begin, int64_t end) {
  const auto ask = [&](View4 view, int64_t h) {
    const int64_t size = static_cast<int64_t>(size_of(view.dtype()));
    const auto* row = static_cast<const std::byte*>(view.data()) + view.offset(0, begin, h, 0) * size;
    for (int64_t t = begin; t < end; ++t, row += view.stride(1) * size) {
      for (int64_t i = 0; i < view.extent(3) * size; i += 64) __builtin_prefetch(row + i, 0, 2);
    }
  };
  if (begin >= end || stretch.q.stride(3) != 1 || stretch.k.stride(3) != 1 || stretch.v.stride(3) != 1) return;
  ask(stretch.q, head);
  ask(stretch.k, head / call.group);
  ask(stretch.v, head / call.group);
}

size_t TurnNorms::floats(const WindowedCall& call, int64_t tokens) {
  return 2 * round_up(static_cast<size_t>(std::min(windows_per_turn(call) * call.window, tokens)), 16);
}

void TurnNorms::fill_keys(const WindowedCall& call, const Stretch& s, int64_t g, int64_t begin, int64_t end) const {
  if (begin >= end) return;
  half_norms({.x = rows_of<Rows>(s.k, 0, begin, g),
              .mask = mask_of(s.valid, {}, 0, begin, 0),
              .count = static_cast<size_t>(end - begin),
              .dim = static_cast<size_t>(call.dim),
              .scale = call.scale,
              .norms = {keys, DType::f32, 1, 1}});
}

void TurnNorms::fill_queries(const WindowedCall& call, const Stretch& s, int64_t h, int64_t begin, int64_t end,
                             float offset) const {
  if (begin >= end) return;
  half_norms({.x = rows_of<Rows>(s.q, 0, begin, h),
              .count = static_cast<size_t>(end - begin),
              .dim = static_cast<size_t>(call.dim),
              .scale = call.scale,
              .offset = offset,
              .norms = {queries, DType::f32, 1, 1}});
}

void for_head_ranges(const WindowedCall& call, size_t floats_per_head, size_t floats,
                     const std::function<void(int64_t begin, int64_t end, float* memory)>& body) {
  const Workers workers = call.workers();
  const int64_t ranges = std::min<int64_t>(workers.count(), call.heads), longest = (call.heads + ranges - 1) / ranges;
  const Scratch memory(workers.count(), static_cast<size_t>(longest) * floats_per_head + floats);
  workers.run(ranges, memory,
              [&](int64_t range, float* own) { body(call.heads * range / ranges, call.heads * (range + 1) / ranges, own); });
}

}  // namespace raffia::internal
