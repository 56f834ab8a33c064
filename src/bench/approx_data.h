// Data for measuring estimators: generated sequences, or queries, keys and values from files.
#ifndef RAFFIA_BENCH_APPROX_DATA_H_
#define RAFFIA_BENCH_APPROX_DATA_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/named.h"
#include "raffia/views.h"

namespace raffia::internal::bench {

// q [B, T, H, D], k [B, T, G, D], v [B, T, G, V] in memory.
struct Qkv {
  Extents<4> q_shape{}, k_shape{}, v_shape{};
  std::vector<float> q, k, v;

  View4 q_view() const { return {q.data(), q_shape}; }
  View4 k_view() const { return {k.data(), k_shape}; }
  View4 v_view() const { return {v.data(), v_shape}; }
};

enum class DataSet : uint8_t {
  iid,   // q, k ~ N(0, scale^2), v ~ N(0, 1): no structure
  walk,  // projections of tokens that drift: x_t = 0.98 x_{t-1} + noise
  rw,    // projections of a random walk, normalised over the sequence
};

inline constexpr Named<DataSet> kDataSets[] = {{"iid", DataSet::iid}, {"walk", DataSet::walk}, {"rw", DataSet::rw}};

// One sequence and one head. With hidden tokens x of unit variance, q = scale x Wq, k = scale x Wk, v = x Wv; entries of the
// matrices are N(0, 1 / d), and Wk = 0.7 Wq + 0.71 W': queries and keys of nearby tokens are similar.
Qkv generate(DataSet data, double scale, int64_t length, int64_t dim, uint64_t seed);

// One .safetensors file that holds `names`, or three .npy files. Arrays are [T, D], [T, H, D] or [B, T, H, D].
// Throws Error, which names the file, what was found and what was expected.
Qkv load(const std::vector<std::string>& files, const std::vector<std::string>& names);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_APPROX_DATA_H_
