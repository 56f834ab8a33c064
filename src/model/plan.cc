#include "model/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "estimators/registry.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Shape = std::vector<int64_t>;

// Makes parts of a model and lists their tensors.
class Parts {
 public:
  TensorPlan tensor(std::string name, Shape shape, TensorRole role) {
    return tensors_.emplace_back(TensorPlan{.name = std::move(name), .shape = std::move(shape), .role = role});
  }

  LinearLayerPlan linear(const std::string& name, int64_t out, int64_t in, bool bias, TensorRole role = TensorRole::matrix) {
    LinearLayerPlan plan{.name = name, .weight = tensor(name + ".weight", {out, in}, role)};
    if (bias) plan.bias = tensor(name + ".bias", {out}, TensorRole::offset);
    return plan;
  }

  TablePlan table(const std::string& name, int64_t rows, int64_t width, TensorRole role) {
    return {.name = name, .weight = tensor(name + ".weight", {rows, width}, role)};
  }

  NormPlan norm(const std::string& name, const ModelConfig& config) {
    NormPlan plan{.name = name, .weight = tensor(name + ".weight", {config.width}, TensorRole::factor), .eps = config.norm_eps};
    if (config.norm == Norm::layer) plan.bias = tensor(name + ".bias", {config.width}, TensorRole::offset);
    return plan;
  }

  AttentionPlan attention(std::string_view name, const AttentionSettings& settings) {
    const int64_t width = settings.width, key_width = settings.key_width();
    const EstimatorTraits traits = traits_of(settings.estimator);
    const std::string at = name.empty() ? "" : fmt::format("{}.", name);
    AttentionPlan plan{settings, std::string(name)};
    plan.q = linear(at + "q_proj", width, width, settings.bias);
    plan.k = linear(at + "k_proj", key_width, width, settings.bias);
    plan.v = linear(at + "v_proj", key_width, width, settings.bias);
    plan.out = linear(at + "out_proj", width, width, settings.bias);
    if (settings.conv > 0) {
      plan.conv_q = tensor(at + "conv_q", {width, settings.conv}, TensorRole::taps);
      plan.conv_k = tensor(at + "conv_k", {key_width, settings.conv}, TensorRole::taps);
      plan.conv_v = tensor(at + "conv_v", {key_width, settings.conv}, TensorRole::taps);
    }
    if (settings.head_norm) {
      plan.head_norm_weight = tensor(at + "head_norm", {settings.heads, settings.head_dim()}, TensorRole::factor);
    }
    if (traits.has_map) plan.map = map(at + "map", settings);
    if (traits.is_gated) plan.gate = linear(at + "gate", settings.key_heads, width, true);
    if (traits.blends) plan.log_scale = tensor(at + "log_scale", {settings.heads}, TensorRole::offset);
    return plan;
  }

  std::vector<TensorPlan> take() { return std::move(tensors_); }

 private:
  MapPlan map(const std::string& name, const AttentionSettings& settings) {
    const int64_t heads = settings.key_heads, dim = settings.head_dim(), count = map_size(settings.estimator);
    MapPlan plan{.name = name, .kind = settings.estimator.map};
    switch (plan.kind) {
      case MapKind::identity:
      case MapKind::elu:
        break;
      case MapKind::relu:
        plan.weight = tensor(name + ".weight", {heads, count, dim}, TensorRole::features);
        plan.bias = tensor(name + ".bias", {heads, count}, TensorRole::offset);
        break;
      case MapKind::trig:
      case MapKind::arccos:
      case MapKind::positive:
      case MapKind::positive2:
        plan.draws = tensor(name + ".draws", {heads, count, dim}, TensorRole::draws);
        if (settings.learned_sigma) plan.sigma = tensor(name + ".sigma", {heads, dim}, TensorRole::sigma);
        break;
    }
    return plan;
  }

  std::vector<TensorPlan> tensors_;
};

// The rules that turn a configuration into layers.
class Planner {
 public:
  explicit Planner(const ModelConfig& config) : config_(config) {}

  ModelPlan plan() {
    const bool reads_images = config_.task == Task::image, has_classes = reads_images || config_.task == Task::classify;
    const bool has_decoder = !has_classes;
    const int64_t width = config_.width;
    ModelPlan plan;
    if (reads_images) {
      plan.patches = parts_.linear("patches", width, config_.channels * config_.patch * config_.patch, true);
    } else {
      plan.embedding = parts_.table("embedding", config_.vocabulary, width, TensorRole::vocabulary);
    }
    if (has_classes || config_.task == Task::translate) plan.encoder = stack("encoder", false, false);
    if (has_decoder) plan.decoder = stack("decoder", true, config_.task == Task::translate);
    if (has_decoder && !config_.tied)
      plan.output = parts_.linear("output", config_.vocabulary, width, false, TensorRole::vocabulary);
    // Pairs have four features for each of a text: [a, b, a o b, a - b].
    if (has_classes) plan.head = parts_.linear("head", config_.classes, config_.pairs ? 4 * width : width, true);
    plan.tensors = parts_.take();
    return plan;
  }

 private:
  int64_t learned_positions() const {
    if (config_.task == Task::image) {
      const int64_t side = config_.image_size / config_.patch;
      return side * side;
    }
    return config_.positions == Positions::learned ? config_.max_length : 0;
  }

  StackPlan stack(const std::string& name, bool causal, bool cross) {
    StackPlan plan{.name = name, .dropout = config_.dropout};
    if (const int64_t count = learned_positions(); count > 0) {
      plan.positions = parts_.table(name + ".positions", count, config_.width, TensorRole::offset);
    }
    for (int64_t i = 0; i < config_.layers; ++i) {
      plan.layers.push_back(layer(fmt::format("{}.layers.{}", name, i), config_.estimator(i), causal, cross));
    }
    plan.norm = parts_.norm(name + ".norm", config_);
    return plan;
  }

  LayerPlan layer(const std::string& name, const Estimator& estimator, bool causal, bool cross) {
    const int64_t width = config_.width, ffn = config_.ffn_width();
    const bool rotary = config_.positions == Positions::rotary && config_.task != Task::image;
    // A translator has one name for both sides: its encoder takes the closest form that reads both ways.
    const bool is_replaced = !causal && config_.task == Task::translate;
    LayerPlan plan;
    plan.name = name;
    plan.attention_norm = parts_.norm(name + ".attention_norm", config_);
    plan.attention = attention(name + ".attention", is_replaced ? bidirectional_form(estimator) : estimator, causal, rotary);
    if (cross) {
      plan.cross_norm = parts_.norm(name + ".cross_norm", config_);
      // Positions in different texts cannot be compared.
      plan.cross = attention(name + ".cross", config_.cross, false, false);
    }
    plan.ffn_norm = parts_.norm(name + ".ffn_norm", config_);
    if (config_.feed_forward == FeedForward::swiglu) plan.ffn_gate = parts_.linear(name + ".ffn_gate", ffn, width, config_.bias);
    plan.ffn_up = parts_.linear(name + ".ffn_up", ffn, width, config_.bias);
    plan.ffn_down = parts_.linear(name + ".ffn_down", width, ffn, config_.bias);
    return plan;
  }

  AttentionPlan attention(const std::string& name, Estimator estimator, bool causal, bool rotary) {
    if (estimator.seed == 0) estimator.seed = config_.seed;  // one with its own seed keeps it
    estimator.layer = next_stream_++;
    return parts_.attention(name, {.width = config_.width,
                                   .heads = config_.heads,
                                   .key_heads = config_.key_heads(),
                                   .estimator = estimator,
                                   .causal = causal,
                                   .bias = config_.bias,
                                   .rotary = rotary,
                                   .rotary_base = config_.rotary_base,
                                   .conv = causal ? config_.conv : 0,
                                   .head_norm = config_.head_norm,
                                   .learned_sigma = config_.learned_sigma,
                                   .pool = config_.pool,
                                   .span_min = config_.span_min,
                                   .span_max = config_.span_max});
  }

  const ModelConfig& config_;
  Parts parts_;
  uint32_t next_stream_ = 0;  // attentions in their order: those of the encoder first
};

}  // namespace

int64_t TensorPlan::count() const {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string own_name(std::string_view name) { return std::string(name.substr(name.rfind('.') + 1)); }

int64_t StackPlan::branches() const {
  int64_t count = 0;
  for (const LayerPlan& layer : layers) count += layer.cross ? 3 : 2;
  return count;
}

const TensorPlan* ModelPlan::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &TensorPlan::name);
  return found == tensors.end() ? nullptr : &*found;
}

int64_t ModelPlan::parameters() const {
  int64_t count = 0;
  for (const TensorPlan& tensor : tensors) count += tensor.count();
  return count;
}

AttentionPlan plan_attention(std::string_view name, const AttentionSettings& settings) {
  return Parts().attention(name, settings);
}

ModelPlan plan_of(const ModelConfig& config) { return Planner(config).plan(); }

void require_tensors(const Safetensors& file, const ModelPlan& plan, std::string_view where) {
  const auto refuse = [where](std::string_view name, const std::string& what) {
    throw FormatError(fmt::format("{}: tensor \"{}\" {}", where, name, what));
  };
  std::set<std::string, std::less<>> known;
  for (const TensorPlan& tensor : plan.tensors) {
    const Safetensors::Tensor* found = file.find(tensor.name);
    if (found == nullptr) refuse(tensor.name, "is missing");
    known.insert(tensor.name);
    if (tensor.is_matrix() && find_weight_format(found->dtype) != nullptr) {
      const StoredTensor stored = stored_tensor(file, *found, tensor.shape, where);
      if (stored.scales != nullptr) known.insert(stored.scales->name);
    } else if (found->shape != tensor.shape) {
      refuse(tensor.name, fmt::format("has shape {}, expected {}", to_string(found->shape), to_string(tensor.shape)));
    }
  }
  for (const Safetensors::Tensor& found : file.tensors()) {
    if (!known.contains(found.name)) refuse(found.name, "is not part of the model");
  }
}

std::vector<WeightSource> planned_weights(const Safetensors& file, const ModelPlan& plan, std::string_view where) {
  require_tensors(file, plan, where);
  std::vector<WeightSource> sources;
  // In the order of the file.
  for (const Safetensors::Tensor& found : file.tensors()) {
    const TensorPlan* tensor = plan.find(found.name);
    if (tensor == nullptr) continue;
    sources.push_back(weight_source(file, found, tensor->shape, tensor->is_matrix(), where));
    sources.back().is_vocabulary = tensor->is_vocabulary();
  }
  return sources;
}

}  // namespace raffia::internal
