// The memory of linear attention: a value whose size does not depend on the length of the text.
//
// Per batch entry b and key/value head h:
//   sums        S [F, V]   = sum_i weight_i phi(k_i) v_i^T
//   normaliser  z [F]      = sum_i weight_i phi(k_i)
//   mass        m          = sum_i weight_i             (the natural scale of denominators)
//   log_decay   log of the product of all gates since the state was empty; 0 without a gate
// F V + F + 2 floats: 8,322 at F = 128, V = 64, as much as a KV cache of 65 tokens.
#ifndef RAFFIA_STATE_H_
#define RAFFIA_STATE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <new>
#include <span>
#include <vector>

#include "raffia/api.h"
#include "raffia/features.h"

namespace raffia {

namespace detail {

// Aligns the data of a state to cache lines: a vector that straddles two of them costs two accesses.
template <class T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <class U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}  // NOLINT(google-explicit-constructor): allocators convert
  T* allocate(size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{64}); }
  template <class U>
  bool operator==(const CacheLineAllocator<U>&) const {
    return true;
  }
};

}  // namespace detail

struct StateShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t features = 0;   // F
  int64_t value_dim = 0;  // V
  bool operator==(const StateShape&) const = default;
};

struct StateOptions {
  int64_t batch = 1;
  int64_t value_dim = 64;
};

class RAFFIA_API State {
 public:
  explicit State(const StateShape& shape);  // empty memory: all zeros
  State(const FeatureMap& map, const StateOptions& options)
      : State(StateShape{options.batch, map.heads(), map.features(), options.value_dim}) {}

  const StateShape& shape() const { return shape_; }
  size_t size_bytes() const { return data_.size() * sizeof(float); }

  std::span<float> sums(int64_t b, int64_t h);
  std::span<const float> sums(int64_t b, int64_t h) const;
  std::span<float> normaliser(int64_t b, int64_t h);
  std::span<const float> normaliser(int64_t b, int64_t h) const;
  float& mass(int64_t b, int64_t h);
  float mass(int64_t b, int64_t h) const;
  float& log_decay(int64_t b, int64_t h);
  float log_decay(int64_t b, int64_t h) const;

  void reset();  // back to empty memory

  // Entry i of the result is entry indices[i] of this state: for beam search, forks (repeat an index) and shrinking batches.
  State select(std::span<const int64_t> indices) const;

  // The memory of a text in two parts, where `later` started empty: (g2, M2) . (g1, M1) = (g2 g1, g2 M1 + M2).
  static State compose(const State& earlier, const State& later);

  // A versioned format with a checksum (see docs/state-format.md), little-endian on every machine.
  std::vector<std::byte> to_bytes() const;
  static State from_bytes(std::span<const std::byte> bytes);  // throws FormatError
  void save(const std::filesystem::path& path) const;         // atomic: a temporary file is written, synced and renamed
  static State load(const std::filesystem::path& path);       // throws IoError or FormatError

  // All parts: sums [B, H, F, V], then normalisers [B, H, F], masses [B, H] and log decays [B, H]. Aligned to a cache line.
  std::span<float> data() { return data_; }
  std::span<const float> data() const { return data_; }
  bool operator==(const State&) const = default;

 private:
  // Where part `part` (in the order above) of an entry and head begins.
  size_t offset(int part, int64_t b, int64_t h) const;

  StateShape shape_;
  std::vector<float, detail::CacheLineAllocator<float>> data_;
};

}  // namespace raffia

#endif  // RAFFIA_STATE_H_
