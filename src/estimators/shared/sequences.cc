#include "estimators/shared/sequences.h"

#include "core/check.h"

namespace raffia::internal {
namespace {

void require_offsets(const char* function, const char* argument, std::span<const int64_t> offsets, int64_t length) {
  require(offsets.front() == 0 && offsets.back() == length, "{}: {} goes from {} to {}, expected 0 to {}", function, argument,
          offsets.front(), offsets.back(), length);
  require(std::is_sorted(offsets.begin(), offsets.end()), "{}: {} decreases, expected ascending offsets", function, argument);
}

}  // namespace

std::vector<Sequence> sequences_of(const char* function, const Layout& layout, int64_t batch, int64_t queries, int64_t keys) {
  std::vector<Sequence> sequences;
  require(layout.lengths.empty() || layout.cu_seqlens.empty(), "{}: both lengths and cu_seqlens are given, expected one of them",
          function);
  if (!layout.cu_seqlens.empty()) {
    const std::span<const int64_t> of_queries = layout.cu_seqlens;
    const std::span<const int64_t> of_keys = layout.cu_seqlens_k.empty() ? of_queries : layout.cu_seqlens_k;
    require(batch == 1, "{}: cu_seqlens is given with a batch of {}, expected 1", function, batch);
    require(of_keys.size() == of_queries.size(), "{}: cu_seqlens_k has {} offsets, expected {} (as many as cu_seqlens)", function,
            of_keys.size(), of_queries.size());
    require_offsets(function, "cu_seqlens", of_queries, queries);
    require_offsets(function, layout.cu_seqlens_k.empty() ? "cu_seqlens" : "cu_seqlens_k", of_keys, keys);
    for (size_t n = 0; n + 1 < of_queries.size(); ++n) {
      sequences.push_back({0, of_queries[n], of_queries[n + 1] - of_queries[n], of_keys[n], of_keys[n + 1] - of_keys[n]});
    }
    return sequences;
  }
  require(layout.cu_seqlens_k.empty(), "{}: cu_seqlens_k is given without cu_seqlens", function);
  require(layout.lengths.empty() || layout.lengths.size() == static_cast<size_t>(batch),
          "{}: lengths has {} entries, expected {} (batch of q)", function, layout.lengths.size(), batch);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = layout.lengths.empty() ? keys : layout.lengths[static_cast<size_t>(b)];
    require(length >= 0 && length <= keys, "{}: lengths[{}] is {}, expected 0 to {} (length of k)", function, b, length, keys);
    sequences.push_back({b, 0, queries == keys ? length : queries, 0, length});
  }
  return sequences;
}

void fill_rest(MutView4 view, int64_t b, int64_t begin) {
  for (int64_t t = begin; t < view.extent(1); ++t) {
    for (int64_t h = 0; h < view.extent(2); ++h) {
      const MutRows row = rows_of<MutRows>(view, b, t, h);
      for (int64_t i = 0; i < view.extent(3); ++i) row.set(0, static_cast<size_t>(i), 0.0F);
    }
  }
}

void fill_rest(MutView3 view, int64_t b, int64_t begin, float value) {
  for (int64_t t = begin; t < view.extent(1); ++t) {
    for (int64_t h = 0; h < view.extent(2); ++h) column_of<MutRows>(view, b, t, h).set(0, 0, value);
  }
}

}  // namespace raffia::internal
