#include "estimators/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/split.h"

namespace raffia::internal {

// Each is defined in the folder of its kind, and has its row in estimator_modules().
const EstimatorModule& softmax_module();
const EstimatorModule& window_module();
const EstimatorModule& rfa_module();
const EstimatorModule& rfa_gate_module();
const EstimatorModule& hybrid_module();
const EstimatorModule& ra_module();
const EstimatorModule& lara_module();
const EstimatorModule& eva_module();
const EstimatorModule& mean_module();

}  // namespace raffia::internal

namespace raffia {

using namespace internal;
namespace {

std::string names_of_kinds() {
  std::vector<std::string_view> names;
  for (const EstimatorModule* module : estimator_modules()) names.push_back(module->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const EstimatorModule& module_named(std::string_view name) {
  for (const EstimatorModule* module : estimator_modules()) {
    if (same_name(module->name, name)) return *module;
  }
  throw InvalidArgument(fmt::format("parse_estimator: kind is \"{}\", expected one of {}", name, names_of_kinds()));
}

const EstimatorKey& find_key(const EstimatorModule& module, std::string_view name) {
  std::vector<std::string_view> used;
  for (const EstimatorKey* key : module.keys) {
    if (same_name(key->name, name)) return *key;
    used.push_back(key->name);
  }
  throw InvalidArgument(fmt::format("parse_estimator: {} has no key \"{}\", expected {}", module.name, name,
                                    used.empty() ? "none" : fmt::format("one of {}", fmt::join(used, ", "))));
}

// The default estimator of this kind: fields that the kind does not use have the same value for all kinds.
Estimator defaults_of(const EstimatorModule& module, const Estimator& defaults) {
  Estimator estimator{.kind = module.kind};
  for (const EstimatorKey* key : module.keys) {
    const std::string value = key->write(defaults);
    if (!value.empty()) key->read(estimator, {module.name, key->name, value});
  }
  return estimator;
}

template <typename... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidArgument(fmt::format(format, std::forward<Args>(args)...));
}

// A call after checks that are the same for all, with what a caller may leave out of the inputs: the map, and the scale of the
// folded part. Texts and copies are made only where they are needed: steps take microseconds.
class CheckedCall {
 public:
  CheckedCall(const char* function, const Estimator& estimator, const AttendInputs& inputs, bool causal)
      : module(module_of(estimator)), inputs_(&inputs) {
    const EstimatorTraits traits = module.traits(estimator);
    if (causal && !traits.causal)
      refuse("{}: {} is bidirectional, expected options.causal to be false", function, to_string(estimator));
    if (!causal && !traits.bidirectional)
      refuse("{}: {} is causal, expected options.causal to be true", function, to_string(estimator));
    if (module.forms_differ) check_used(function, estimator, causal);
    if (inputs.map != nullptr && estimator.log)
      refuse("{}: map is given, but {} draws its own features in log space", function, to_string(estimator));
    if (traits.is_gated && inputs.gate_logits.absent())
      refuse("{}: gate_logits is absent, expected [B, T, G] ({} decays by them)", function, module.name);
    if (traits.has_map && inputs.map == nullptr) add_map(estimator);
    if (traits.blends && inputs.log_scale.absent()) add_log_scale();
  }

  const AttendInputs& inputs() const { return *inputs_; }

  const EstimatorModule& module;

 private:
  void check_used(const char* function, const Estimator& estimator, bool causal) const {
    const Estimator used = module.used(estimator, causal);
    if (used == estimator) return;
    refuse("{}: {} has keys that its {} form does not use, expected {}", function, to_string(estimator),
           causal ? "causal" : "bidirectional", to_string(used));
  }
  AttendInputs& own() {
    if (!own_) inputs_ = &own_.emplace(*inputs_);
    return *own_;
  }
  void add_map(const Estimator& estimator) {
    const View4 folded = inputs_->k_far.absent() ? inputs_->k : inputs_->k_far;
    own().map = &map_.emplace(estimator.make_map(folded.extent(3), folded.extent(2)));
  }
  void add_log_scale() {
    constexpr float kLogScale = -2;  // where training starts
    const int64_t heads = inputs_->q.extent(2);
    log_scale_.assign(static_cast<size_t>(heads), kLogScale);
    own().log_scale = {log_scale_.data(), {heads}};
  }

  const AttendInputs* inputs_;
  std::optional<AttendInputs> own_;
  std::optional<FeatureMap> map_;
  std::vector<float> log_scale_;
};

}  // namespace

std::span<const EstimatorModule* const> internal::estimator_modules() {
  static const EstimatorModule* const modules[] = {&softmax_module(),  &window_module(), &rfa_module(),
                                                   &rfa_gate_module(), &hybrid_module(), &ra_module(),
                                                   &lara_module(),     &eva_module(),    &mean_module()};
  return modules;
}

const EstimatorModule& internal::module_of(EstimatorKind kind) {
  const auto modules = estimator_modules();
  require(static_cast<size_t>(kind) < modules.size(), "estimator: kind is {}, expected one of {}", static_cast<int>(kind),
          names_of_kinds());
  return *modules[static_cast<size_t>(kind)];
}

std::string internal::kinds_with(bool EstimatorTraits::*trait) {
  std::vector<std::string_view> names;
  for (const EstimatorModule* module : estimator_modules()) {
    if (module->traits({.kind = module->kind}).*trait) names.push_back(module->name);
  }
  if (names.size() < 2) return names.empty() ? "none" : std::string(names.front());
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::span<const EstimatorKind> estimator_kinds() {
  static const std::vector<EstimatorKind> kinds = [] {
    std::vector<EstimatorKind> all;
    for (const EstimatorModule* module : estimator_modules()) all.push_back(module->kind);
    return all;
  }();
  return kinds;
}

std::string_view name_of(EstimatorKind kind) {
  const auto modules = estimator_modules();
  return static_cast<size_t>(kind) < modules.size() ? modules[static_cast<size_t>(kind)]->name : "unknown";
}
std::string_view summary_of(EstimatorKind kind) { return module_of(kind).summary; }
EstimatorTraits traits_of(const Estimator& estimator) { return module_of(estimator).traits(estimator); }
Estimator bidirectional_form(const Estimator& estimator) { return module_of(estimator).bidirectional_form(estimator); }

Estimator parse_estimator(std::string_view text, const Estimator& defaults) {
  const size_t colon = text.find(':');
  const EstimatorModule& module = module_named(text.substr(0, colon));
  Estimator estimator = defaults_of(module, defaults);
  if (colon == std::string_view::npos) return estimator;

  std::vector<const EstimatorKey*> seen;
  for (const std::string_view setting : split(text.substr(colon + 1), ',')) {
    const size_t equals = setting.find('=');
    require(equals != std::string_view::npos, "parse_estimator: \"{}\" in \"{}\", expected key=value", setting, text);
    const EstimatorKey& key = find_key(module, setting.substr(0, equals));
    require(std::ranges::find(seen, &key) == seen.end(), "parse_estimator: key \"{}\" twice in \"{}\", expected once", key.name,
            text);
    seen.push_back(&key);
    key.read(estimator, {module.name, key.name, setting.substr(equals + 1)});
  }
  module.check(estimator);
  return estimator;
}

void check_settings(const Estimator& estimator) {
  const EstimatorModule& module = module_of(estimator);
  Estimator copy = estimator;
  for (const EstimatorKey* key : module.keys) {
    const std::string value = key->write(estimator);
    if (!value.empty()) key->read(copy, {module.name, key->name, value});
  }
  module.check(estimator);
}

std::string to_string(const Estimator& estimator, const Estimator& defaults) {
  const EstimatorModule& module = module_of(estimator);
  const Estimator plain = defaults_of(module, defaults);
  std::string text(module.name);
  char separator = ':';
  for (const EstimatorKey* key : module.keys) {
    const std::string value = key->write(estimator);
    if (value == key->write(plain)) continue;
    text += fmt::format("{}{}={}", std::exchange(separator, ','), key->name, value);
  }
  return text;
}

int64_t internal::map_size(const Estimator& estimator) { return estimator.samples.value_or(64); }

FeatureMap Estimator::make_map(int64_t dim, int64_t heads) const {
  if (!log && !traits_of(*this).has_map)
    refuse("Estimator::make_map: kind is {}, expected {}", name_of(kind), kinds_with(&EstimatorTraits::has_map));
  const MapKind chosen = log ? MapKind::positive : map;
  require(chosen != MapKind::relu, "Estimator::make_map: map is relu, whose weights are learned, expected AttendInputs::map");
  if (chosen == MapKind::identity) return FeatureMap::identity(dim, heads);
  if (chosen == MapKind::elu) return FeatureMap::elu(dim, heads);
  return FeatureMap::random(
      chosen, {.dim = dim, .count = map_size(*this), .heads = heads, .seed = seed, .layer = layer, .draw = draw, .draws = draws});
}

Report attend(const Estimator& estimator, const AttendInputs& inputs, MutView4 out, const AttendOptions& options,
              std::span<float> record) {
  const CheckedCall call("attend", estimator, inputs, options.causal);
  return call.module.attend(estimator, call.inputs(), out, options, record);
}

int64_t attend_record_size(const Estimator& estimator, const AttendInputs& inputs, const AttendOptions& options) {
  const CheckedCall call("attend_record_size", estimator, inputs, options.causal);
  return call.module.record_size(estimator, call.inputs(), options);
}

void attend_backward(const Estimator& estimator, const AttendInputs& inputs, View4 out, std::span<const float> record, View4 dout,
                     const AttendGradients& gradients, const AttendOptions& options) {
  const CheckedCall call("attend_backward", estimator, inputs, options.causal);
  call.module.backward(estimator, call.inputs(), out, record, dout, gradients, options);
}

Memory empty_memory(const Estimator& estimator, const MemorySizes& sizes) {
  const EstimatorTraits traits = traits_of(estimator);
  if (!traits.causal) refuse("empty_memory: {} is bidirectional, expected an estimator with a causal form", to_string(estimator));
  if (traits.has_map && sizes.map == nullptr) refuse("empty_memory: map is absent, expected that of {}", to_string(estimator));
  return module_of(estimator).empty_memory(estimator, sizes);
}

std::optional<int64_t> memory_bytes(const Estimator& estimator, const MemorySizes& sizes, int64_t tokens) {
  if (traits_of(estimator).has_map && sizes.map == nullptr)
    refuse("memory_bytes: map is absent, expected that of {}", to_string(estimator));
  return module_of(estimator).memory_bytes(estimator, sizes, tokens);
}

Report attend(const Estimator& estimator, const AttendInputs& inputs, Memory& memory, MutView4 out,
              const AttendOptions& options) {
  require(options.causal, "attend: a memory is given with options.causal = false, expected true");
  const CheckedCall call("attend", estimator, inputs, true);
  return call.module.extend(estimator, call.inputs(), memory, out, options);
}

Report attend_step(const Estimator& estimator, const AttendInputs& inputs, std::span<Memory* const> sessions, MutView4 out,
                   const AttendOptions& options) {
  const CheckedCall call("attend_step", estimator, inputs, true);
  require(std::ssize(sessions) == inputs.q.extent(0), "attend_step: {} sessions, expected {} (batch of q)", sessions.size(),
          inputs.q.extent(0));
  require(inputs.q.extent(1) == 1, "attend_step: q has {} tokens, expected 1", inputs.q.extent(1));
  return call.module.step(estimator, call.inputs(), sessions, out, options);
}

}  // namespace raffia
