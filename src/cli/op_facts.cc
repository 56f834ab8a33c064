// What is known of an op before it runs: the fields of its record, its state size, and its FLOP.
#include "cli/bench.h"

namespace raffia::cli {
namespace {

// Bytes of memory needed to continue after `length` tokens; nullopt if that is not possible.
std::optional<int64_t> state_bytes(const BenchShape& shape, const OpForm& form, const FeatureMap* map, int64_t length) {
  const EstimatorTraits traits = form.traits();
  const bool continues = form.causal || traits.has_map || !traits.constant_memory;
  if (!continues || !traits.causal || !traits.has_memory) return std::nullopt;
  const bool has_far = traits.blends && form.input == OpInput::features;
  const std::optional<int64_t> bytes = memory_bytes(form.estimator, memory_sizes(shape, map, has_far), length);
  // A cache of keys and values has the type of the inputs.
  if (!bytes || traits.constant_memory) return bytes;
  return *bytes / static_cast<int64_t>(sizeof(float)) * static_cast<int64_t>(size_of(shape.dtype));
}

// The map of a form, if its estimator has one.
std::optional<FeatureMap> map_of(const BenchShape& shape, const OpForm& form, OpInput input) {
  if (!form.traits().has_map) return std::nullopt;
  return make_map(shape, form.estimator, input);
}

WorkSizes work_sizes(const BenchShape& shape, const OpForm& form, const std::optional<FeatureMap>& map) {
  return {.batch = shape.batch,
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .map = map ? &*map : nullptr,
          .has_features = form.input == OpInput::features};
}

}  // namespace

double attention_flops(const BenchShape& shape, const OpForm& form, Pass pass, int64_t length) {
  const std::optional<FeatureMap> map = map_of(shape, form, OpInput::qk);
  return attention_flops(form.estimator, work_sizes(shape, form, map), form.causal, pass, length);
}

double step_flops(const BenchShape& shape, const OpForm& form, int64_t depth) {
  const std::optional<FeatureMap> map = map_of(shape, form, OpInput::qk);
  return step_flops(form.estimator, work_sizes(shape, form, map), depth);
}

Record describe(const BenchShape& shape, const OpForm& form, int64_t length, int64_t threads) {
  const EstimatorSizes sizes = module_of(form.estimator).sizes(form.estimator, form.causal);
  const std::optional<FeatureMap> map = map_of(shape, form, OpInput::qk), state_map = map_of(shape, form, form.input);
  Record record{
      .op = form.name,
      .input = std::string(name_in(kInputs, form.input)),
      .causal = form.causal,
      .threads = threads,
      .isa = std::string(name_of(active_isa())),
      .batch = shape.batch,
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .length = length,
      .head_dim = shape.head_dim,
      .value_dim = shape.value_dim,
      .features = sizes.features,
      .samples = sizes.samples,
      .window = sizes.window,
      .dtype = name_of(shape.dtype),
      .state_bytes = state_bytes(shape, form, state_map ? &*state_map : nullptr, length),
  };
  if (map) {
    record.map = std::string(name_of(map->kind()));
    record.features = map->features();
  }
  return record;
}

}  // namespace raffia::cli
