// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A stream is identified by a key (seed, layer, head, draw). Number i of a stream depends only on the key and i, so any part of
// it can be computed at any time, with the same bits for every ISA and number of threads.
#ifndef RAFFIA_RANDOM_H_
#define RAFFIA_RANDOM_H_

#include <array>
#include <cstdint>
#include <span>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

// One block of the generator: 4 words from a counter and a key.
RAFFIA_API std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

struct StreamKey {
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t draw = 0;  // which matrix of the pool
};

class RAFFIA_API RandomStream {
 public:
  explicit RandomStream(const StreamKey& key);

  uint32_t next_u32();
  double next_uniform();  // in (0, 1): neither 0 nor 1
  double next_normal();   // N(0, 1), Box-Muller in double from two uniforms

 private:
  StreamKey key_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

// The random numbers of Randomized Attention for draw `draw` of `draws` of query `query`, both counted from 0. Returns a uniform
// number in (0, 1) and fills `noise` [dim] with N(0, 1). Draws can be computed in any order, at the same cost.
// Draw n = query * draws + draw uses 1 + ceil(dim / 2) blocks of the stream, from block n * (1 + ceil(dim / 2)) on: the uniform
// number comes from the first two words of the first block; each further block gives two normals, as in RandomStream.
RAFFIA_API double randomized_draw(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, std::span<float> noise);

// Only the uniform number of such a draw with `dim` normals.
RAFFIA_API double randomized_uniform(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, int64_t dim);

// How the rows of a projection are drawn.
enum class Draws : uint8_t {
  iid,         // every entry N(0, 1)
  orthogonal,  // stacked d x d orthogonal blocks, rows of independent chi(d) length: lower kernel error at the same cost
};

// Fills `rows` [count, dim] row-major.
RAFFIA_API void draw_projection(const StreamKey& key, Draws draws, int64_t count, int64_t dim, std::span<float> rows);

}  // namespace raffia

#endif  // RAFFIA_RANDOM_H_
