#include "estimators/shared/cached.h"

#include <cstring>

#include "core/check.h"
#include "core/scratch.h"
#include "core/window_layout.h"
#include "estimators/shared/calls.h"

namespace raffia::internal {
namespace {

// Copies elements of the same type.
void copy_elements(View4 from, MutView4 to) {
  const size_t size = size_of(from.dtype());
  const auto* source = static_cast<const std::byte*>(from.data());
  auto* target = static_cast<std::byte*>(to.data());
  for (int64_t t = 0; t < from.extent(1); ++t) {
    for (int64_t h = 0; h < from.extent(2); ++h) {
      for (int64_t c = 0; c < from.extent(3); ++c) {
        const auto at = static_cast<size_t>(from.stride(1) * t + from.stride(2) * h + from.stride(3) * c) * size;
        const auto into = static_cast<size_t>(to.stride(1) * t + to.stride(2) * h + to.stride(3) * c) * size;
        std::memcpy(target + into, source + at, size);
      }
    }
  }
}

// [1, T, H, D] with `past` tokens of zeros before it.
struct Padded {
  std::vector<float> memory;
  MutView4 whole, last;

  Padded(const MutView4& like, int64_t past) {
    const Extents<4> shape{1, past + like.extent(1), like.extent(2), like.extent(3)};
    memory.resize(static_cast<size_t>(shape[1] * shape[2] * shape[3]));  // as many floats are enough for any type
    const int64_t row = shape[2] * shape[3];
    whole = MutView4(memory.data(), like.dtype(), shape, {0, row, shape[3], 1});
    last = whole.slice(1, past, like.extent(1));
  }
};

// Throws if a cache does not fit the tokens that are appended to it: nothing is written then.
void require_fit(const KeyCacheShape& shape, const AttendInputs& in, int64_t batch) {
  require(in.k.extent(0) == in.q.extent(0) && in.v.extent(0) == in.q.extent(0) && in.k.extent(1) == in.q.extent(1) &&
              in.v.extent(1) == in.q.extent(1) && in.v.extent(2) == in.k.extent(2),
          "attend: k has shape [{}, {}, {}, {}] and v [{}, {}, {}, {}], expected [{}, {}, G, D] and [{}, {}, G, V] (batch and "
          "length of q)",
          in.k.extent(0), in.k.extent(1), in.k.extent(2), in.k.extent(3), in.v.extent(0), in.v.extent(1), in.v.extent(2),
          in.v.extent(3), in.q.extent(0), in.q.extent(1), in.q.extent(0), in.q.extent(1));
  require(
      shape.batch == batch && shape.heads == in.k.extent(2) && shape.dim == in.k.extent(3) && shape.value_dim == in.v.extent(3),
      "attend: memory is of batch {}, {} heads, keys of {} and values of {}, expected {}, {}, {} and {} (q, k and v)",
      shape.batch, shape.heads, shape.dim, shape.value_dim, batch, in.k.extent(2), in.k.extent(3), in.v.extent(3));
}

// q, out [1, T, H, ..], k, v [1, T, G, ..]
void extend_entry(const CachedAttention& op, View4 q, View4 k, View4 v, KeyCache& cache, int64_t b, MutView4 out,
                  const AttendOptions& options) {
  const auto rows = [](const View4& x) {
    return View3(x.data(), x.dtype(), {x.extent(1), x.extent(2), x.extent(3)}, {x.stride(1), x.stride(2), x.stride(3)});
  };
  const int64_t past = cache.rows(b);
  cache.append(b, rows(k), rows(v));
  if (past == 0 || !op.counts_from_first_key) {
    op.attend(q, cache.keys(b), cache.values(b), out, options);
  } else {
    const MutView4 like_q(const_cast<void*>(q.data()), q.dtype(), q.shape(), q.strides());  // only its shape is used
    Padded queries(like_q, past), answers(out, past);
    copy_elements(q, queries.last);
    op.attend(queries.whole, cache.keys(b), cache.values(b), answers.whole, options);
    copy_elements(answers.last, out);
  }
  if (op.visible) cache.keep_last(b, op.visible(cache.tokens(b)));
}

}  // namespace

std::optional<int64_t> window_state_bytes(const WindowStateShape& shape) {
  const auto layout = layout_of(shape);
  if (!layout) return {};
  return checked_product({static_cast<int64_t>(layout->entry), static_cast<int64_t>(sizeof(float)), shape.batch});
}

KeyCache empty_cache(const MemorySizes& sizes) {
  return KeyCache({.batch = sizes.batch, .heads = sizes.heads, .dim = sizes.dim, .value_dim = sizes.value_dim});
}

std::optional<int64_t> cache_bytes(const MemorySizes& sizes, int64_t rows) {
  return checked_product({sizes.batch, rows, sizes.heads, sizes.dim + sizes.value_dim, static_cast<int64_t>(sizeof(float))});
}

void extend_cached(const CachedAttention& op, const AttendInputs& inputs, KeyCache& cache, MutView4 out,
                   const AttendOptions& options) {
  const Layout& layout = options.layout;
  require(layout.valid.absent() && layout.lengths.empty() && layout.cu_seqlens.empty(),
          "attend: a layout is given with a key cache, expected none: every sequence needs a memory of its own");
  require_fit(cache.shape(), inputs, inputs.q.extent(0));
  for (int64_t b = 0; b < inputs.q.extent(0); ++b) {
    extend_entry(op, inputs.q.slice(0, b, 1), inputs.k.slice(0, b, 1), inputs.v.slice(0, b, 1), cache, b, out.slice(0, b, 1),
                 options);
  }
}

void step_cached(const CachedAttention& op, const AttendInputs& inputs, std::span<KeyCache* const> sessions, MutView4 out,
                 const AttendOptions& options) {
  for (const KeyCache* cache : sessions) require_fit(cache->shape(), inputs, 1);
  const auto step_one = [&](int64_t i, int threads) {
    AttendOptions alone = options;
    alone.run.threads = threads;
    const auto one = [i](const auto& view) { return view.slice(0, i, 1); };
    KeyCache& cache = *sessions[static_cast<size_t>(i)];
    if (!op.step) return extend_entry(op, one(inputs.q), one(inputs.k), one(inputs.v), cache, 0, one(out), alone);
    cache.append(0, without_tokens(one(inputs.k)), without_tokens(one(inputs.v)));
    op.step(without_tokens(one(inputs.q)), cache.keys(0), cache.values(0), without_tokens(one(out)), alone);
    if (op.visible) cache.keep_last(0, op.visible(cache.tokens(0)));
  };
  const auto count = static_cast<int64_t>(sessions.size());
  if (count == 1) return step_one(0, options.run.threads);
  Executor& executor = options.run.executor != nullptr ? *options.run.executor : default_executor();
  const int threads = options.run.threads > 0 ? options.run.threads : executor.concurrency();
  executor.run(count, threads, [&](int64_t i, int) { step_one(i, 1); });
}

}  // namespace raffia::internal
