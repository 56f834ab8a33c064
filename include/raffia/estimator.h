// An attention estimator and its options as one value, with a text form that models, benchmarks and commands share.
//
//   Estimator e = parse_estimator("lara:samples=64,proposals=qk-mixed");
//   attend(e, {.q = q, .k = k, .v = v}, out);
//
// Names: softmax, window (exact attention to the recent past only), rfa, rfa_gate, hybrid, ra, lara, eva. Every field below is a
// key of the string, with underscores or hyphens; a key that the kind does not use is an error.
#ifndef RAFFIA_ESTIMATOR_H_
#define RAFFIA_ESTIMATOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "raffia/attention.h"
#include "raffia/eva.h"
#include "raffia/features.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"

namespace raffia {

enum class EstimatorKind : uint8_t { softmax, window, rfa, rfa_gate, hybrid, ra, lara, eva };

std::string_view name_of(EstimatorKind kind);

struct Estimator {
  EstimatorKind kind = EstimatorKind::softmax;
  // rfa, rfa_gate, hybrid: random vectors D. ra: draws per query. lara: samples. eva: chunks (bidirectional), or summaries kept
  // (causal; 0: all). Default by kind: 64; ra: 1; causal lara: 128; causal eva: 256.
  std::optional<int64_t> samples = {};
  MapKind map = MapKind::trig;                     // rfa, rfa_gate, hybrid; rfa with `log` has positive features
  bool log = false;                                // rfa: positive features in log space (bidirectional): any scale, no clamp
  int64_t window = 32;                             // window, hybrid, eva, causal lara
  int64_t before = 0;                              // window: how many earlier windows are also seen (1: the exact part of hybrid)
  int64_t chunk = 8;                               // causal eva, causal lara: tokens per summary or proposal
  int64_t features = 64;                           // causal eva: random features of the folded past
  float decay = 1;                                 // causal eva: factor of the folded past per window
  int64_t per_proposal = 1;                        // lara: samples per proposal
  Proposals proposals = Proposals::chunk_mean;     // lara
  SampleWeights weights = SampleWeights::balance;  // lara
  float strength = 1;                              // lara with weights=mis-opt: eta
  // lara: samples are the means of their proposals (true), or drawn around them (false). Not set (mean=auto): means in
  // evaluation, that is in attend(), the runtime and modules in eval(); draws in training. Causal forms always draw, and so do
  // those without a mean for each sample (proposals=standard, per_proposal above 1).
  std::optional<bool> mean = {};
  bool streaming = true;  // causal lara
  Draws draws = Draws::orthogonal;
  uint64_t seed = 0;
  uint32_t layer = 0;
  uint32_t draw = 0;
  bool operator==(const Estimator&) const = default;

  bool is_random() const;  // the output depends on the seed, in one of its forms or in training
  bool supports_causal() const;
  bool supports_bidirectional() const;

  // The map of rfa, rfa_gate and hybrid.
  FeatureMap make_map(int64_t dim, int64_t heads) const;
};

// "name" or "name:key=value,key=value". Throws InvalidArgument, which says what is wrong and what was expected. Keys that are not
// given have the value of `defaults` (whose kind is ignored).
Estimator parse_estimator(std::string_view text, const Estimator& defaults = {});
// parse_estimator gives the same value back with the same defaults; values that equal them are omitted.
std::string to_string(const Estimator& estimator, const Estimator& defaults = {});

struct AttendInputs {
  View4 q = {}, k = {}, v = {};
  View3 gate_logits = {};           // rfa_gate, hybrid
  View1 log_scale = {};             // hybrid: c [H]; absent: -2 for every head
  View4 q_far = {}, k_far = {};     // hybrid, see HybridInputs
  const FeatureMap* map = nullptr;  // rfa, rfa_gate, hybrid; null: estimator.make_map()
};

struct AttendOptions {
  bool causal = false;
  std::optional<float> scale = {};  // of logits; default: 1 / sqrt(D). Maps have their own scale
  Layout layout = {};
  int threads = 0;
  Executor* executor = nullptr;
};

// Attention over whole sequences with any estimator, from empty memory. Throws InvalidArgument if the kind does not support it.
Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_ESTIMATOR_H_
