// What an op is before it runs: an estimator with its settings, given a shape; the fields of its record, and its FLOP.
#ifndef RAFFIA_BENCH_OP_FORM_H_
#define RAFFIA_BENCH_OP_FORM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bench/arrays.h"
#include "bench/records.h"
#include "core/named.h"
#include "estimators/work.h"
#include "raffia/estimator.h"
#include "raffia/features.h"

namespace raffia::internal::bench {

enum class OpInput : uint8_t {
  features,  // phi(q) and phi(k) are given
  qk,        // the map is part of the op
};
inline constexpr Named<OpInput> kInputs[] = {{"features", OpInput::features}, {"qk", OpInput::qk}};

inline constexpr Named<Pass> kPasses[] = {
    {"forward", Pass::forward}, {"backward", Pass::backward}, {"forward+backward", Pass::forward_backward}};

inline constexpr std::string_view kSoftmax = "softmax";  // what all others are compared with

// One of several things that an estimator can do.
struct OpForm {
  std::string name = std::string(kSoftmax);  // as the user wrote it
  Estimator estimator = {};
  OpInput input = OpInput::qk;
  bool causal = false;

  EstimatorTraits traits() const { return traits_of(estimator); }
};

struct BenchShape {
  int64_t batch = 1;
  int64_t heads = 8;
  int64_t kv_heads = 0;  // as many as heads if 0, until check() fills it in
  int64_t head_dim = 64;
  int64_t value_dim = 0;                // head_dim if 0, until check() fills it in
  int64_t random_features = 64;         // D; causal eva: R
  std::optional<int64_t> samples = {};  // of estimators without a map and without samples=N; nullopt: their default
  int64_t window = 32;
  int64_t chunk = 8;
  MapKind map = MapKind::trig;
  DType dtype = DType::f32;
  ArrayLayout layout = ArrayLayout::bthd;
  uint64_t seed = 0;
};

// Fills in what the shape leaves open. Throws OptionError if its settings contradict each other.
void check(BenchShape& shape);

// The estimator of `spec`, with the shape in place of settings that it does not name; a pass of training draws samples where
// `mean` is not set, as training does. Throws OptionError if it cannot run so.
OpForm form_of(const BenchShape& shape, const std::string& spec, OpInput input, bool causal, Pass pass = Pass::forward);

// The map of an estimator; with `input` features, the identity on its features.
FeatureMap make_map(const BenchShape& shape, const Estimator& estimator, OpInput input);
MemorySizes memory_sizes(const BenchShape& shape, const FeatureMap* map, bool has_far);

// The fields of a record that are known before measuring.
Record describe(const BenchShape& shape, const OpForm& form, int64_t length, int64_t threads);
// See estimators/work.h.
double attention_flops(const BenchShape& shape, const OpForm& form, Pass pass, int64_t length);
double step_flops(const BenchShape& shape, const OpForm& form, int64_t depth);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_OP_FORM_H_
