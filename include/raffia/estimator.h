// An attention estimator and its options as one value, with a text form that models, benchmarks and commands share.
//
//   Estimator e = parse_estimator("lara:samples=64,proposals=qk-mixed");
//   attend(e, {.q = q, .k = k, .v = v}, out);
//
// Names: softmax, window (exact attention to the recent past only), rfa, rfa_gate, hybrid, ra, lara, eva, mean (of all
// visible values: a baseline). Every field below is a key of the string, with underscores or hyphens; a key that the kind does
// not use is an error.
#ifndef RAFFIA_ESTIMATOR_H_
#define RAFFIA_ESTIMATOR_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "raffia/api.h"
#include "raffia/attention.h"
#include "raffia/eva.h"
#include "raffia/features.h"
#include "raffia/hybrid.h"
#include "raffia/lara.h"
#include "raffia/memory.h"

namespace raffia {

enum class EstimatorKind : uint8_t { softmax, window, rfa, rfa_gate, hybrid, ra, lara, eva, mean };

RAFFIA_API std::string_view name_of(EstimatorKind kind);

struct RAFFIA_API Estimator {
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

  // The map of an estimator that has one (traits_of(..).has_map), or log=true of rfa.
  FeatureMap make_map(int64_t dim, int64_t heads) const;
};

// What an estimator with its settings can do and what it needs.
struct EstimatorTraits {
  bool causal = true;                 // has a causal form
  bool bidirectional = true;          // has a form in which every query reads all keys
  bool cross = false;                 // may read another text: a translator's attention to its source
  bool is_exact = false;              // reads every key: what the others estimate
  bool is_random = false;             // the output depends on the seed, in one of its forms or in training
  bool has_samples = false;           // `samples` is a number of random vectors, draws or summaries
  bool has_map = false;               // reads queries and keys through a feature map
  bool is_gated = false;              // needs gate_logits
  bool blends = false;                // merges exact and folded attention: takes log_scale, q_far and k_far
  bool has_memory = true;             // a causal text can be continued from a memory
  bool constant_memory = false;       // .. which has the same size after any number of tokens
  bool fades = false;                 // .. and the influence of old tokens decays or ends
  bool carried_by_default = false;    // training carries its memory from segment to segment if not told otherwise
  bool wants_positions = true;        // models have rotary positions if not told otherwise
  bool has_segments = false;          // a long sequence can be computed in parallel segments
  bool splits_sequences = false;      // training can split a sequence over processes
  double span_min = 0, span_max = 0;  // of gates: initial spans 1 / (1 - g), geometric over the heads
};
RAFFIA_API EstimatorTraits traits_of(const Estimator& estimator);

// Throws InvalidArgument if a setting has a value that parse_estimator() refuses: for estimators that a program made.
RAFFIA_API void check_settings(const Estimator& estimator);

// All kinds, in the order of the enum, and one line about each for help texts.
RAFFIA_API std::span<const EstimatorKind> estimator_kinds();
RAFFIA_API std::string_view summary_of(EstimatorKind kind);

// The closest estimator that has a bidirectional form: for the encoder of a translator whose decoder has this one.
RAFFIA_API Estimator bidirectional_form(const Estimator& estimator);

// "name" or "name:key=value,key=value". Throws InvalidArgument, which says what is wrong and what was expected. Keys that are not
// given have the value of `defaults` (whose kind is ignored).
RAFFIA_API Estimator parse_estimator(std::string_view text, const Estimator& defaults = {});
// parse_estimator gives the same value back with the same defaults; values that equal them are omitted.
RAFFIA_API std::string to_string(const Estimator& estimator, const Estimator& defaults = {});

struct AttendInputs {
  View4 q = {}, k = {}, v = {};
  View3 gate_logits = {};           // if the estimator is gated
  View1 log_scale = {};             // if it blends: c [H]; absent: -2 for every head
  View4 q_far = {}, k_far = {};     // the same, see HybridInputs
  const FeatureMap* map = nullptr;  // if it has a map; null: estimator.make_map()
};

struct AttendOptions {
  bool causal = false;
  std::optional<float> scale = {};  // of logits; default: 1 / sqrt(D). Maps have their own scale
  Layout layout = {};
  int64_t segment = 0;  // tokens per parallel segment, where the estimator has segments: see AttentionOptions
  RunOptions run = {};
};

// Attention over whole sequences with any estimator, from empty memory. Throws InvalidArgument if the kind does not support it.
// `record`: filled for attend_backward(), attend_record_size() floats; empty: none.
RAFFIA_API Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options = {},
                         std::span<float> record = {});

// Views are overwritten, parameter gradients are added to. Absent views are not computed.
struct AttendGradients {
  MutView4 q = {}, k = {}, v = {};
  MutView3 gate_logits = {};
  MutView1 log_scale = {};
  MutView4 q_far = {}, k_far = {};
  MapGradients map = {};
};

// The backward pass of attend(): `out` and `record` are those of the forward pass with the same inputs and options.
RAFFIA_API int64_t attend_record_size(const Estimator& estimator, const AttendInputs& inputs, const AttendOptions& options = {});
RAFFIA_API void attend_backward(const Estimator& estimator, const AttendInputs& inputs, View4 out, std::span<const float> record,
                                View4 dout, const AttendGradients& gradients, const AttendOptions& options = {});

// The sizes that the memory of a causal attention depends on.
struct MemorySizes {
  int64_t batch = 1;
  int64_t query_heads = 1;          // H
  int64_t heads = 1;                // G
  int64_t dim = 0;                  // D
  int64_t value_dim = 0;            // V
  const FeatureMap* map = nullptr;  // if the estimator has one
  bool has_far = false;             // k_far will be given
};

RAFFIA_API Memory empty_memory(const Estimator& estimator, const MemorySizes& sizes);
// Bytes of a memory after `tokens` tokens, without allocating it; nullopt if they overflow an int64_t.
RAFFIA_API std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t tokens);

// Causal attention that continues after the tokens in `memory`, which is read and updated. options.causal must be true.
RAFFIA_API Report attend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
                         const AttendOptions& options);

// One token for each session: T = 1 in the inputs, B sessions, each with its own memory (of batch 1).
RAFFIA_API Report attend_step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions,
                              MutView4 out, const AttendOptions& options);

}  // namespace raffia

#endif  // RAFFIA_ESTIMATOR_H_
