#include "estimators/softmax_part.h"

#include <algorithm>

#include "core/scratch.h"

namespace raffia {

KeyMask mask_of(View2 valid, View3 key_bias, int64_t b, int64_t t, int64_t g) {
  KeyMask mask;
  if (!valid.absent()) {
    mask.valid = static_cast<const uint8_t*>(valid.data()) + valid.offset(b, t);
    mask.valid_stride = valid.stride(1);
  }
  mask.bias = column_of<Rows>(key_bias, b, t, g);
  return mask;
}

namespace {

// Whether one block of queries alone reads the keys of a head: then it packs them as it goes, and they never leave the cache.
bool packs_as_it_goes(const SoftmaxPart& part, const PartSequence& s) {
  return part.q.extent(2) == part.k.extent(2) && s.visible.queries <= kQueryBlock;
}

// The keys of all sequences and heads, packed, but for sequences that `left_out` names.
class PackedPart {
 public:
  template <class LeftOut>
  PackedPart(const SoftmaxPart& part, size_t value_dim, const LeftOut& left_out)
      : groups_(part.k.extent(2)), memory_(1, floats(part, value_dim, left_out)) {
    const size_t dim = static_cast<size_t>(part.q.extent(3));
    float* free = memory_.of(0);
    std::vector<PackTask> tasks;
    for (const PartSequence& s : part.sequences) {
      for (int64_t g = 0; g < groups_; ++g) {
        PackedKeys keys{.count = s.visible.keys, .dim = dim, .value_dim = value_dim};
        if (!left_out(s)) {
          const size_t rows = keys.blocks() * kKeyBlock;
          keys.k = free;
          keys.v = keys.k + rows * dim;
          if (masked(part)) keys.bias = keys.v + rows * keys.value_columns();
          free += rows * floats_per_key(part, value_dim);
          for (size_t block = 0; block < keys.blocks(); ++block) {
            tasks.push_back({.keys = keys,
                             .block = block,
                             .k = rows_of<Rows>(part.k, s.batch, s.first_key, g),
                             .v = rows_of<Rows>(part.v, s.batch, s.first_key, g),
                             .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g)});
          }
        }
        keys_.push_back(keys);
      }
    }
    part.workers.run(tasks, Scratch(part.workers.count(), pack_scratch(dim, value_dim)), pack_keys);
  }

  const PackedKeys& of(size_t sequence, int64_t g) const {
    return keys_[sequence * static_cast<size_t>(groups_) + static_cast<size_t>(g)];
  }

 private:
  static bool masked(const SoftmaxPart& part) { return !part.key_bias.absent() || !part.valid.absent(); }
  static size_t floats_per_key(const SoftmaxPart& part, size_t value_dim) {
    return static_cast<size_t>(part.q.extent(3)) + round_up(value_dim, 16) + (masked(part) ? 1 : 0);
  }
  template <class LeftOut>
  static size_t floats(const SoftmaxPart& part, size_t value_dim, const LeftOut& left_out) {
    size_t keys = 0;
    for (const PartSequence& s : part.sequences) {
      if (!left_out(s)) keys += round_up(s.visible.keys, kKeyBlock) * static_cast<size_t>(part.k.extent(2));
    }
    return keys * floats_per_key(part, value_dim);
  }

  int64_t groups_;
  Scratch memory_;
  std::vector<PackedKeys> keys_;  // [sequences, groups]
};

}  // namespace

void forward(const SoftmaxPart& part, MutView4 out, MutView3 logsumexp, Start start) {
  const size_t dim = static_cast<size_t>(part.q.extent(3)), value_dim = static_cast<size_t>(part.v.extent(3));
  const int64_t heads = part.q.extent(2), group = heads / part.k.extent(2);
  const PackedPart packed(part, value_dim, [&](const PartSequence& s) { return packs_as_it_goes(part, s); });
  std::vector<ForwardTask> tasks;
  for (size_t n = 0; n < part.sequences.size(); ++n) {
    const PartSequence& s = part.sequences[n];
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t g = h / group;
      for (size_t first = 0; first < s.visible.queries; first += kQueryBlock) {
        tasks.push_back({.keys = packed.of(n, g),
                         .k = rows_of<Rows>(part.k, s.batch, s.first_key, g),
                         .v = rows_of<Rows>(part.v, s.batch, s.first_key, g),
                         .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g),
                         .packs = packs_as_it_goes(part, s),
                         .visible = s.visible,
                         .first = first,
                         .count = std::min(kQueryBlock, s.visible.queries - first),
                         .scale = part.scale,
                         .q = rows_of<Rows>(part.q, s.batch, s.first_query, h),
                         .query_bias = column_of<Rows>(part.query_bias, s.batch, s.first_query, h),
                         .out = rows_of<MutRows>(out, s.batch, s.first_query, h),
                         .logsumexp = column_of<MutRows>(logsumexp, s.batch, s.first_query, h),
                         .resume = start == Start::resume});
      }
    }
  }
  part.workers.run(tasks, Scratch(part.workers.count(), forward_scratch(dim, value_dim)), softmax_forward);
}

void draw_keys(const SoftmaxPart& part, View3 logsumexp, int64_t draws,
               const std::function<double(int64_t i, int64_t h, int64_t t)>& uniform, std::span<int32_t> drawn) {
  const size_t dim = static_cast<size_t>(part.q.extent(3)), each = static_cast<size_t>(draws);
  const int64_t heads = part.q.extent(2), group = heads / part.k.extent(2);
  const PackedPart packed(part, 0, [](const PartSequence&) { return false; });
  struct Place {
    size_t sequence;
    int64_t head;
    size_t first;
  };
  std::vector<Place> places;
  for (size_t n = 0; n < part.sequences.size(); ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      for (size_t first = 0; first < part.sequences[n].visible.queries; first += kQueryBlock) places.push_back({n, h, first});
    }
  }
  // Per worker: uniforms (doubles), keys drawn (as wide as floats), then what the kernel needs.
  const Scratch scratch(part.workers.count(), 3 * kQueryBlock * each + draw_scratch(dim));
  part.workers.run(places, scratch, [&](const Place& place, float* memory) {
    const PartSequence& s = part.sequences[place.sequence];
    const size_t count = std::min(kQueryBlock, s.visible.queries - place.first);
    double* uniforms = reinterpret_cast<double*>(memory);
    int32_t* keys = reinterpret_cast<int32_t*>(memory + 2 * kQueryBlock * each);
    for (size_t i = 0; i < count; ++i) {
      for (size_t t = 0; t < each; ++t) {
        uniforms[i * each + t] = uniform(static_cast<int64_t>(place.first + i), place.head, static_cast<int64_t>(t));
      }
    }
    const int64_t g = place.head / group;
    softmax_draw({.keys = packed.of(place.sequence, g),
                  .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g),
                  .visible = s.visible,
                  .first = place.first,
                  .count = count,
                  .scale = part.scale,
                  .q = rows_of<Rows>(part.q, s.batch, s.first_query, place.head),
                  .logsumexp = column_of<Rows>(logsumexp, s.batch, s.first_query, place.head),
                  .draws = each,
                  .uniforms = uniforms,
                  .drawn = keys},
                 memory + 3 * kQueryBlock * each);
    for (size_t i = 0; i < count; ++i) {
      const int64_t t = s.first_query + static_cast<int64_t>(place.first + i);
      const int64_t row = (s.batch * part.q.extent(1) + t) * heads + place.head;
      std::copy_n(keys + i * each, each, drawn.begin() + row * draws);
    }
  });
}

void backward(const SoftmaxPart& part, View4 out, View3 logsumexp, View4 dout, View3 dlogsumexp,
              const SoftmaxGradients& gradients, Additions additions) {
  const size_t dim = static_cast<size_t>(part.q.extent(3)), value_dim = static_cast<size_t>(part.v.extent(3));
  const int64_t query_heads = part.q.extent(2), groups = part.k.extent(2), group = query_heads / groups;
  const size_t floats_per_query = PackedQueries::floats_per_query(dim, value_dim);
  size_t queries = 0;
  for (const PartSequence& s : part.sequences) queries += s.visible.queries * static_cast<size_t>(query_heads);
  const Scratch packed(1, queries * floats_per_query);
  float* free = packed.of(0);

  std::vector<PackQueriesTask> pack_tasks;
  std::vector<BackwardHead> heads;
  heads.reserve(part.sequences.size() * static_cast<size_t>(query_heads));  // tasks point into it
  std::vector<BackwardTask> tasks;
  for (const PartSequence& s : part.sequences) {
    const size_t count = s.visible.queries;
    for (int64_t g = 0; g < groups; ++g) {
      tasks.push_back({.heads = heads.data() + heads.size(),
                       .head_count = static_cast<size_t>(group),
                       .dim = dim,
                       .value_dim = value_dim,
                       .visible = s.visible,
                       .scale = part.scale,
                       .k = rows_of<Rows>(part.k, s.batch, s.first_key, g),
                       .v = rows_of<Rows>(part.v, s.batch, s.first_key, g),
                       .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g),
                       .dk = rows_of<MutRows>(gradients.k, s.batch, s.first_key, g),
                       .dv = rows_of<MutRows>(gradients.v, s.batch, s.first_key, g),
                       .dbias = column_of<MutRows>(gradients.key_bias, s.batch, s.first_key, g),
                       .add_dk = additions.k});
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        const PackedQueries packed_queries(count, dim, value_dim, free);
        free += count * floats_per_query;
        heads.push_back({packed_queries, rows_of<MutRows>(gradients.q, s.batch, s.first_query, h), additions.q});
        for (size_t first = 0; first < count; first += kQueryBlock) {
          pack_tasks.push_back({.queries = packed_queries,
                                .first = first,
                                .end = std::min(first + kQueryBlock, count),
                                .scale = part.scale,
                                .q = rows_of<Rows>(part.q, s.batch, s.first_query, h),
                                .out = rows_of<Rows>(out, s.batch, s.first_query, h),
                                .logsumexp = column_of<Rows>(logsumexp, s.batch, s.first_query, h),
                                .dout = rows_of<Rows>(dout, s.batch, s.first_query, h),
                                .query_bias = column_of<Rows>(part.query_bias, s.batch, s.first_query, h),
                                .dlogsumexp = column_of<Rows>(dlogsumexp, s.batch, s.first_query, h)});
        }
      }
    }
  }
  const Scratch scratch(part.workers.count(), backward_scratch(dim, value_dim));
  part.workers.run(pack_tasks, scratch, pack_queries);
  part.workers.run(tasks, scratch, softmax_backward);
}

}  // namespace raffia
