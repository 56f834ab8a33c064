// Linear attention of one sequence and one key/value head, as the kernels see it. src/estimators divides ops into these.
#ifndef RAFFIA_KERNELS_LINEAR_H_
#define RAFFIA_KERNELS_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "kernels/rows.h"
#include "raffia/features.h"

namespace raffia::internal {

constexpr size_t kChunk = 16;      // tokens folded at once: one panel. See docs/performance.md#chunk
constexpr size_t kBlock = 128;     // tokens between recorded states, a multiple of kChunk
constexpr size_t kFoldChunks = 4;  // chunks per update where keys are only folded, not read

// The parameters of one head of a feature map.
struct MapParams {
  explicit MapParams(const FeatureMap& map, int64_t head);

  MapKind kind;
  size_t dim, rows, features;
  const float* weights;  // W [D, d]
  const float* draws;    // w~ [D, d], or A of relu
  const float* sigma;    // [d] or null
  const float* bias;     // [F] or null
  float input_scale, output_scale;
};

// Gradients of a map's parameters, summed lane by lane over the chunks of one task: [.., 16]. Null if not requested.
struct MapSums {
  float* sigma = nullptr;   // [d, 16]
  float* weight = nullptr;  // panels [ceil(d / 16)][F][16]
  float* bias = nullptr;    // [F, 16]
};

// What a query head reads and writes. Gradient rows are absent (null data) in the forward pass or if not requested.
struct QueryHead {
  Rows q;
  MutRows out;
  float* denominators = nullptr;  // [T], out: what rows were divided by, negative where clamped; 0 where the output is 0
  Rows forward_out;               // out of the forward pass, read by the backward pass
  const float* forward_denominators = nullptr;
  Rows dout;
  MutRows dq;
};

struct LinearProblem {
  MapParams map;
  size_t value_dim = 0;
  size_t query_length = 0;  // of the bidirectional form; causal forms have `length` queries
  size_t length = 0;        // keys
  float eps = 0;
  const QueryHead* heads = nullptr;
  size_t group = 0;  // query heads
  Rows k, v;
  Rows gate;                       // logits [T, 1]; null data: no gate
  const uint8_t* valid = nullptr;  // [T], with stride valid_stride; null: all. In causal forms other tokens give 0
  int64_t valid_stride = 0;
  MutRows dk, dv;
  MutRows dgate;
  MapSums map_sums;

  size_t panels() const { return (value_dim + kChunk - 1) / kChunk; }
  size_t state_floats() const { return map.features * (panels() * kChunk + 1); }
};

// A state in the kernels' layout: panels [P][F][16] of the sums, then z [F].
struct PackedState {
  float* sums = nullptr;
  float* normaliser = nullptr;
  double mass = 0;
  double log_decay = 0;

  PackedState() = default;
  PackedState(float* floats, const LinearProblem& problem)
      : sums(floats), normaliser(floats + problem.map.features * problem.panels() * kChunk) {}
};

struct ClampCount {
  int64_t rows = 0;
  int64_t clamped = 0;
};

// Between a State's rows [F, V] and panels; columns past V are 0.
void pack_state(const float* sums, const float* normaliser, const LinearProblem& problem, const PackedState& packed);
void unpack_state(const PackedState& packed, const LinearProblem& problem, float* sums, float* normaliser);
void clear_state(const LinearProblem& problem, PackedState& packed);
void copy_state(const LinearProblem& problem, const PackedState& from, PackedState& to);
// later = earlier followed by later.
void compose_states(const LinearProblem& problem, const PackedState& earlier, PackedState& later);

// Floats of scratch that the forward functions below need, and the backward ones.
size_t linear_scratch_floats(const LinearProblem& problem);
size_t linear_backward_scratch_floats(const LinearProblem& problem);

// What the caller will compute next: its first rows and its state are prefetched.
struct Upcoming {
  const LinearProblem* problem = nullptr;
  size_t begin = 0;
  const float* state = nullptr;  // packed; backward: in the record
};

// Causal forward over tokens [begin, end): reads `state` and updates it to the state after the last token. `record`, if not null,
// receives the packed state at `begin`.
void causal_forward(const LinearProblem& problem, size_t begin, size_t end, const Upcoming& upcoming, PackedState& state,
                    float* record, float* scratch, ClampCount& clamps);

// Keys [begin, end) folded into `state`.
void fold(const LinearProblem& problem, size_t begin, size_t end, PackedState& state, float* scratch);

// Queries [begin, end) read `state`.
void read(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, float* scratch, ClampCount& clamps);

// Causal backward over tokens [begin, end). `record` holds the state at `begin`, then every kBlock tokens, last the one at `end`;
// `gradient`: in, of the state at `end`; out, of the state at `begin`.
void causal_backward(const LinearProblem& problem, size_t begin, size_t end, const float* record, const Upcoming& upcoming,
                     PackedState& gradient, float* scratch);

// The part of the state's gradient that tokens [begin, end) add, folded from the end: the first pass of a parallel backward.
// Adds to `gradient` as it decays; its log_decay accumulates. Needs forward_out in fp32.
void fold_gradient(const LinearProblem& problem, size_t begin, size_t end, PackedState& gradient, float* scratch);

// Bidirectional backward: queries [begin, end) read `state`: dq, and what they add to `gradient`; keys [begin, end): dk and dv
// from it.
void read_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& state, PackedState& gradient,
                   float* scratch);
void fold_backward(const LinearProblem& problem, size_t begin, size_t end, const PackedState& gradient, float* scratch);

// Features of rows [begin, end) alone, and their gradient: dphi -> dx and the map's parameters.
void features_forward(const MapParams& map, const Rows& x, size_t begin, size_t end, const MutRows& phi, float* scratch);
void features_backward(const MapParams& map, const Rows& x, size_t begin, size_t end, const Rows& dphi, const MutRows& dx,
                       const MapSums& sums, float* scratch);
size_t features_scratch_floats(const MapParams& map);

}  // namespace raffia::internal

#endif  // RAFFIA_KERNELS_LINEAR_H_
