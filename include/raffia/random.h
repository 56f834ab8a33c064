// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// A stream is named by a key (seed, layer, head, draw); number i of a stream depends on the key and i alone, so any part of it
// can be computed anywhere, with the same bits for every ISA and thread count.
#ifndef RAFFIA_RANDOM_H_
#define RAFFIA_RANDOM_H_

#include <array>
#include <cstdint>
#include <span>

namespace raffia {

// One block of the generator: 4 words from a counter and a key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

struct StreamKey {
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t head = 0;
  uint32_t draw = 0;  // which matrix of the pool
};

class RandomStream {
 public:
  explicit RandomStream(const StreamKey& key);

  uint32_t next_u32();
  double next_uniform();  // in (0, 1): never 0, never 1
  double next_normal();   // N(0, 1), Box-Muller in double from two uniforms

 private:
  StreamKey key_;
  uint64_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  int used_ = 4;
  double spare_ = 0;
  bool has_spare_ = false;
};

// What Randomized Attention draws for number `draw` of the `draws` of query `query`, both from 0: a uniform of (0, 1), returned,
// and `noise` [dim], every entry N(0, 1). Any of them can be asked for at any time, at the same cost.
// Draw n = query * draws + draw owns the 1 + ceil(dim / 2) blocks of the stream from n * (1 + ceil(dim / 2)) on: the uniform is
// made of the first two words of its first block, and each block after it makes two normals, as RandomStream makes them.
double randomized_draw(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, std::span<float> noise);

// The uniform of the same draw of `dim` normals alone.
double randomized_uniform(const StreamKey& key, int64_t query, int64_t draws, int64_t draw, int64_t dim);

// How the rows of a projection are drawn.
enum class Draws : uint8_t {
  iid,         // every entry N(0, 1)
  orthogonal,  // stacked d x d orthogonal blocks, each row of an independent chi(d) length: lower kernel error for nothing
};

// Fills `rows` [count, dim] row-major.
void draw_projection(const StreamKey& key, Draws draws, int64_t count, int64_t dim, std::span<float> rows);

}  // namespace raffia

#endif  // RAFFIA_RANDOM_H_
