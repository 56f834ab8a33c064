#include "estimators/shared/softmax_part.h"

#include <algorithm>

#include "core/scratch.h"

namespace raffia::internal {

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

// Packing costs about as much as 16 queries. If few tasks share keys, each packs its own while they are in cache; otherwise keys
// are packed once for all tasks.
bool packs_apart(const Visibility& visible, size_t group) {
  size_t keys = 0;
  for (size_t first = 0; first < visible.queries; first += kQueryBlock) {
    const size_t last = std::min(first + kQueryBlock, visible.queries) - 1;
    keys += std::max(visible.end(last), visible.begin(first)) - visible.begin(first);
  }
  return 2 * group * keys <= 3 * visible.keys;
}

}  // namespace

void forward(const SoftmaxPart& part, MutView4 out, MutView3 logsumexp, Start start) {
  const size_t dim = static_cast<size_t>(part.q.extent(3)), value_dim = static_cast<size_t>(part.v.extent(3));
  const int64_t groups = part.k.extent(2), group = part.q.extent(2) / groups;
  const bool masked = !part.key_bias.absent() || !part.valid.absent();
  const size_t floats_per_key = dim + round_up(value_dim, 16) + (masked ? 1 : 0);
  size_t packed_keys = 0;
  std::vector<bool> apart;
  for (const PartSequence& s : part.sequences) {
    apart.push_back(packs_apart(s.visible, static_cast<size_t>(group)));
    if (!apart.back()) packed_keys += round_up(s.visible.keys, kKeyBlock) * static_cast<size_t>(groups);
  }
  const Scratch packed(1, packed_keys * floats_per_key);
  float* free = packed.of(0);

  std::vector<PackTask> pack_tasks;
  std::vector<ForwardTask> tasks;
  std::vector<KeySource> sources;
  sources.reserve(part.sequences.size() * static_cast<size_t>(groups));  // tasks point into it
  for (size_t n = 0; n < part.sequences.size(); ++n) {
    const PartSequence& s = part.sequences[n];
    for (int64_t g = 0; g < groups; ++g) {
      PackedKeys keys{.count = s.visible.keys, .dim = dim, .value_dim = value_dim};
      sources.push_back({.k = rows_of<Rows>(part.k, s.batch, s.first_key, g),
                         .v = rows_of<Rows>(part.v, s.batch, s.first_key, g),
                         .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g)});
      if (!apart[n]) {
        const size_t rows = keys.blocks() * kKeyBlock;
        keys.k = free;
        keys.v = keys.k + rows * dim;
        if (masked) keys.bias = keys.v + rows * keys.value_columns();
        free += rows * floats_per_key;
        for (size_t block = 0; block < keys.blocks(); ++block) {
          pack_tasks.push_back({.keys = keys, .block = block, .source = sources.back()});
        }
      }
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (size_t first = 0; first < s.visible.queries; first += kQueryBlock) {
          tasks.push_back({.keys = keys,
                           .unpacked = apart[n] ? &sources.back() : nullptr,
                           .masked = masked,
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
  }
  const Scratch scratch(part.workers.count(), std::max(pack_scratch(dim, value_dim), forward_scratch(dim, value_dim)));
  part.workers.run(pack_tasks, scratch, pack_keys);
  part.workers.run(tasks, scratch, softmax_forward);
}

void draw_keys(const SoftmaxPart& part, View3 logsumexp, int64_t draws,
               const std::function<double(int64_t i, int64_t h, int64_t t)>& uniform, std::span<int32_t> drawn) {
  const size_t dim = static_cast<size_t>(part.q.extent(3)), each = static_cast<size_t>(draws);
  const int64_t heads = part.q.extent(2), group = heads / part.k.extent(2);
  struct Block {
    const PartSequence* sequence;
    int64_t head;
    size_t first;
  };
  std::vector<Block> blocks;
  for (const PartSequence& s : part.sequences) {
    for (int64_t h = 0; h < heads; ++h) {
      for (size_t first = 0; first < s.visible.queries; first += kQueryBlock) blocks.push_back({&s, h, first});
    }
  }
  // Per worker: uniforms (doubles), keys drawn (as wide as floats), then what the kernel needs.
  const Scratch scratch(part.workers.count(), 3 * kQueryBlock * each + draw_scratch(dim));
  part.workers.run(blocks, scratch, [&](const Block& block, float* memory) {
    const PartSequence& s = *block.sequence;
    const size_t count = std::min(kQueryBlock, s.visible.queries - block.first);
    double* uniforms = reinterpret_cast<double*>(memory);
    int32_t* keys = reinterpret_cast<int32_t*>(memory + 2 * kQueryBlock * each);
    for (size_t i = 0; i < count; ++i) {
      for (size_t t = 0; t < each; ++t) {
        uniforms[i * each + t] = uniform(static_cast<int64_t>(block.first + i), block.head, static_cast<int64_t>(t));
      }
    }
    const int64_t g = block.head / group;
    softmax_draw({.source = {.k = rows_of<Rows>(part.k, s.batch, s.first_key, g),
                             .mask = mask_of(part.valid, part.key_bias, s.batch, s.first_key, g)},
                  .masked = !part.key_bias.absent() || !part.valid.absent(),
                  .visible = s.visible,
                  .first = block.first,
                  .count = count,
                  .dim = dim,
                  .scale = part.scale,
                  .q = rows_of<Rows>(part.q, s.batch, s.first_query, block.head),
                  .logsumexp = column_of<Rows>(logsumexp, s.batch, s.first_query, block.head),
                  .draws = each,
                  .uniforms = uniforms,
                  .drawn = keys},
                 memory + 3 * kQueryBlock * each);
    for (size_t i = 0; i < count; ++i) {
      const int64_t t = s.first_query + static_cast<int64_t>(block.first + i);
      const int64_t row = (s.batch * part.q.extent(1) + t) * heads + block.head;
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
        const uint8_t* valid = part.query_valid.absent() ? nullptr
                                                         : static_cast<const uint8_t*>(part.query_valid.data()) +
                                                               part.query_valid.offset(s.batch, s.first_query);
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
                                .valid = valid,
                                .valid_stride = part.query_valid.stride(1),
                                .dlogsumexp = column_of<Rows>(dlogsumexp, s.batch, s.first_query, h)});
        }
      }
    }
  }
  const Scratch scratch(part.workers.count(), backward_scratch(dim, value_dim));
  part.workers.run(pack_tasks, scratch, pack_queries);
  part.workers.run(tasks, scratch, softmax_backward);
}

}  // namespace raffia::internal
