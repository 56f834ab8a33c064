#include "bench/op_form.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "bench/error.h"
#include "core/message.h"
#include "raffia/isa.h"
#include "raffia/random.h"

namespace raffia::internal::bench {
namespace {

Estimator parsed(const std::string& spec, const Estimator& defaults) {
  try {
    return parse_estimator(spec, defaults);
  } catch (const InvalidArgument& error) {
    throw OptionError(fmt::format("--ops: {}", without_origin(error.what())));
  }
}

FeatureMap random_relu_map(const BenchShape& shape, int64_t features) {
  const Extents<3> weight_shape{shape.kv_heads, features, shape.head_dim};
  const auto rows = static_cast<size_t>(shape.kv_heads * features);
  std::vector<float> weight(rows * static_cast<size_t>(shape.head_dim)), bias(rows);
  RandomStream random({.seed = shape.seed, .draw = 1});
  const auto scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (float& w : weight) w = static_cast<float>(scale * random.next_normal());
  return FeatureMap::relu({weight.data(), weight_shape}, {bias.data(), {shape.kv_heads, features}});
}

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

void check(BenchShape& shape) {
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.value_dim == 0) shape.value_dim = shape.head_dim;
  if (shape.heads % shape.kv_heads != 0) {
    throw OptionError(fmt::format("--kv-heads: {} does not divide --heads {}", shape.kv_heads, shape.heads));
  }
}

OpForm form_of(const BenchShape& shape, const std::string& spec, OpInput input, bool causal, Pass pass) {
  const Estimator defaults{
      .map = shape.map, .window = shape.window, .chunk = shape.chunk, .features = shape.random_features, .seed = shape.seed};
  OpForm form{.name = spec, .estimator = parsed(spec, defaults), .input = input, .causal = causal};
  Estimator& estimator = form.estimator;
  const EstimatorTraits traits = form.traits();
  if (causal ? !traits.causal : !traits.bidirectional) {
    throw OptionError(fmt::format("--ops: {} has {}", spec, causal ? "no causal form" : "a causal form only"));
  }
  if (!estimator.samples && traits.has_map) estimator.samples = shape.random_features;
  if (!estimator.samples && traits.has_samples) estimator.samples = shape.samples;
  estimator = module_of(estimator).used(estimator, causal);
  if (causal && traits.has_memory) {
    const std::optional<FeatureMap> map = traits.has_map ? std::optional(make_map(shape, estimator, OpInput::qk)) : std::nullopt;
    try {
      (void)memory_bytes(estimator, memory_sizes(shape, map ? &*map : nullptr, false), 1);
    } catch (const InvalidArgument& error) {
      const std::string said = error.what();  // after the name of a function
      throw OptionError(fmt::format("--ops: {} cannot run with these settings (see --window, --chunk, --samples): {}", spec,
                                    said.substr(said.find(": ") + 2)));
    }
  }
  if (pass != Pass::forward && !estimator.mean) estimator.mean = false;
  return form;
}

FeatureMap make_map(const BenchShape& shape, const Estimator& estimator, OpInput input) {
  const FeatureMap map = estimator.map == MapKind::relu
                             ? random_relu_map(shape, estimator.samples.value_or(shape.random_features))
                             : estimator.make_map(shape.head_dim, shape.kv_heads);
  return input == OpInput::qk ? map : FeatureMap::identity(map.features(), shape.kv_heads);
}

MemorySizes memory_sizes(const BenchShape& shape, const FeatureMap* map, bool has_far) {
  return {.batch = shape.batch,
          .query_heads = shape.heads,
          .heads = shape.kv_heads,
          .dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .map = map,
          .has_far = has_far};
}

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

}  // namespace raffia::internal::bench
