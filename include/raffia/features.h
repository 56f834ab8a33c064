// Feature maps phi: R^d -> R^F, one per key/value head. Attention with the kernel phi(q) . phi(k) has cost linear in the length.
//
//   kind       phi(x)                                                    F    estimates
//   identity   x                                                         d    nothing: the caller passes features
//   trig       D^-1/2 [sin(W x^); cos(W x^)],  x^ = x / max(|x|, 1e-6)   2D   Gaussian kernel of unit vectors; signed
//   arccos     D^-1/2 relu(W x^)                                         D    first-order arc-cosine kernel
//   positive   D^-1/2 exp(W y - |y|^2/2),  y = d^-1/4 x                  D    exp(q . k / sqrt(d)), never negative
//   positive2  (2D)^-1/2 [exp(W y - ..); exp(-W y - ..)]                 2D   the same with less variance
//   elu        elu(x) + 1                                                d    the non-random baseline
//   relu       relu(A x + b), A and b learned                            F    for models converted from softmax
//
// Rows of W are sigma o w~_i: w~_i random, drawn once (iid or orthogonal) and kept; sigma [d] learned per head, an inverse
// bandwidth, initially 1. The positive maps overflow fp32 where an exponent exceeds +-87; inputs of unit variance stay far below
// that for any d.
#ifndef RAFFIA_FEATURES_H_
#define RAFFIA_FEATURES_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/random.h"
#include "raffia/threads.h"
#include "raffia/views.h"

namespace raffia {

enum class MapKind : uint8_t { identity, trig, arccos, positive, positive2, elu, relu };

RAFFIA_API std::string_view name_of(MapKind kind);
RAFFIA_API bool is_random_map(MapKind kind);               // has random vectors, and a sigma
RAFFIA_API MapKind parse_map_kind(std::string_view name);  // throws InvalidArgument and lists the names

struct RandomMapOptions {
  int64_t dim = 64;    // d, size of a query or key
  int64_t count = 64;  // D, number of random vectors; D = d is a good default, D > 2d helps little
  int64_t heads = 1;   // key/value heads
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;  // which matrix of the pool; training takes a fresh one each step, evaluation always the same
  Draws draws = Draws::orthogonal;
};

// A value: copies are independent. Const methods are safe to call from several threads.
class RAFFIA_API FeatureMap {
 public:
  static FeatureMap identity(int64_t dim, int64_t heads);  // q and k are features already
  static FeatureMap elu(int64_t dim, int64_t heads);
  static FeatureMap trig(const RandomMapOptions& options);
  static FeatureMap arccos(const RandomMapOptions& options);
  static FeatureMap positive(const RandomMapOptions& options);
  static FeatureMap positive2(const RandomMapOptions& options);
  static FeatureMap random(MapKind kind, const RandomMapOptions& options);  // one of the four above
  static FeatureMap with_draws(MapKind kind, View3 draws);  // the same with w~ [H, D, d] given by the caller (f32); no redraw
  static FeatureMap relu(View3 weight, View2 bias);         // [H, F, d], [H, F]

  MapKind kind() const { return kind_; }
  int64_t dim() const { return dim_; }            // d
  int64_t rows() const { return rows_; }          // D, rows of W (0 without a projection)
  int64_t features() const { return features_; }  // F
  int64_t heads() const { return heads_; }
  bool is_random() const;

  // Default relative floor of denominators: 1e-3 if phi(q) . phi(k) is signed or noisy (identity, trig, arccos) or may be
  // 0 for all keys (relu), otherwise 0.
  float default_eps() const;

  float input_scale() const;   // y = input_scale * x before W: d^-1/4 for the positive maps, else 1
  float output_scale() const;  // the factor before phi: D^-1/2 for most random maps

  std::span<const float> draws(int64_t head) const;    // w~ [D, d]; for relu, A
  std::span<const float> weights(int64_t head) const;  // W = sigma o w~ [D, d]; for relu, A
  std::span<const float> bias(int64_t head) const;     // b [F] of relu, else empty
  std::span<const float> sigma(int64_t head) const;    // [d] of the random maps, else empty

  void set_sigma(std::span<const float> sigma);  // [H, d]
  void redraw(uint32_t draw);                    // takes another matrix of the pool; sigma is kept

 private:
  FeatureMap(MapKind kind, int64_t dim, int64_t rows, int64_t features, int64_t heads);
  void apply_sigma();

  MapKind kind_;
  int64_t dim_, rows_, features_, heads_;
  RandomMapOptions options_;    // of the random maps, for redraw
  bool own_draws_ = false;      // given by the caller: there is no pool to redraw from
  std::vector<float> draws_;    // [H, D, d]
  std::vector<float> weights_;  // [H, D, d]
  std::vector<float> sigma_;    // [H, d]
  std::vector<float> bias_;     // [H, F]
};

// Gradients of a map's parameters, added to the contents of the views. Absent views are not computed.
struct MapGradients {
  MutView2 sigma = {};   // [H, d], random maps
  MutView3 weight = {};  // [H, F, d], relu
  MutView2 bias = {};    // [H, F], relu
};

// phi(x) for x [B, T, H, d] -> [B, T, H, F]. H may be a multiple of map.heads(): consecutive heads share a map.
RAFFIA_API void apply_features(View4 x, const FeatureMap& map, MutView4 phi, const RunOptions& run = {});

// dphi [B, T, H, F] -> dx [B, T, H, d] (may be absent) and parameter gradients.
RAFFIA_API void apply_features_backward(View4 x, const FeatureMap& map, View4 dphi, MutView4 dx,
                                        const MapGradients& parameters = {}, const RunOptions& run = {});

}  // namespace raffia

#endif  // RAFFIA_FEATURES_H_
