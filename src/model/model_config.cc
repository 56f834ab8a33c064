#include "raffia/model_config.h"

#include <fmt/format.h>

#include <cmath>

#include "core/message.h"
#include "estimators/registry.h"
#include "io/formats/text.h"
#include "model/config_fields.h"
#include "raffia/error.h"

namespace raffia {

using namespace internal;
namespace {

constexpr std::string_view kTasks[] = {"lm", "translate", "classify", "image"};
constexpr std::string_view kPositions[] = {"none", "rotary", "learned"};
constexpr std::string_view kNorms[] = {"layer", "rms"};
constexpr std::string_view kFeedForwards[] = {"gelu", "swiglu"};

// Larger than any model that fits a machine, so that a file cannot make its reader allocate absurd amounts of memory.
constexpr int64_t kMaxBytesOfModelConfig = 1 << 20;
constexpr int64_t kMaxWidth = 1 << 16;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxVocabulary = 1 << 22;
constexpr int64_t kMaxLength = int64_t{1} << 30;
constexpr int64_t kMaxSamples = 1 << 16;
constexpr int64_t kMaxWindow = 1 << 20;
constexpr int64_t kMaxConv = 64;
constexpr int64_t kMaxPool = 1 << 20;
constexpr int64_t kMaxClasses = 1 << 20;
constexpr int64_t kMaxImageSize = 1 << 13;
constexpr int64_t kMaxChannels = 64;
constexpr double kMaxSpan = 1e9;
constexpr double kMaxParameters = 1e10;

template <typename Value, size_t kCount>
Value parse_name(const std::string_view (&names)[kCount], std::string_view name, std::string_view what) {
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<Value>(i);
  }
  throw InvalidArgument(fmt::format("{}: \"{}\", expected one of {}", what, name, fmt::join(names, ", ")));
}

// The same errors for a config from a file and for one that a program made.
class Checks {
 public:
  Checks(const ModelConfig& config, std::string_view where) : c_(config), where_(where) {}

  void run() const {
    check_sizes();
    check_positions();
    check_task();
    check_estimators();
    check_memory();
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(std::string_view field, fmt::format_string<Args...> format, Args&&... args) const {
    throw FormatError(fmt::format("{}: field \"{}\" {}", where_, field, fmt::format(format, std::forward<Args>(args)...)));
  }

  void within(std::string_view field, int64_t value, int64_t min, int64_t max) const {
    if (value < min || value > max) refuse(field, "is {}, expected {} to {}", value, min, max);
  }

  void within(std::string_view field, double value, double min, double max) const {
    if (!(value >= min && value <= max)) refuse(field, "is {}, expected {} to {}", value, min, max);
  }

  void absent(std::string_view field, int64_t value) const {
    if (value != 0) refuse(field, "is {}, expected 0: task {} does not use it", value, name_of(c_.task));
  }

  void check_sizes() const {
    within("width", c_.width, 1, kMaxWidth);
    within("heads", c_.heads, 1, c_.width);
    if (c_.width % c_.heads != 0) refuse("heads", "is {}, expected a divisor of the width, {}", c_.heads, c_.width);
    within("kv_heads", c_.kv_heads, 0, c_.heads);
    if (c_.heads % c_.key_heads() != 0)
      refuse("kv_heads", "is {}, expected a divisor of the heads, {}, or 0", c_.kv_heads, c_.heads);
    within("layers", c_.layers, 1, kMaxLayers);
    if (c_.norm > Norm::rms) refuse("norm", "is {}, which is not a norm", static_cast<int>(c_.norm));
    within("norm_eps", c_.norm_eps, 1e-12, 1.0);
    if (c_.feed_forward > FeedForward::swiglu)
      refuse("feed_forward", "is {}, which is not a feed-forward layer", static_cast<int>(c_.feed_forward));
    within("ffn", c_.ffn, 0, 16 * kMaxWidth);
    within("conv", c_.conv, 0, kMaxConv);
    within("pool", c_.pool, 0, kMaxPool);
    within("span_min", c_.span_min, 0.0, kMaxSpan);
    within("span_max", c_.span_max, 0.0, kMaxSpan);
    if ((c_.span_min == 0) != (c_.span_max == 0) || c_.span_min > c_.span_max || (c_.span_min > 0 && c_.span_min < 1)) {
      refuse("span_min", "is {} and \"span_max\" {}, expected 1 <= span_min <= span_max, or both 0", c_.span_min, c_.span_max);
    }
    if (!(c_.dropout >= 0 && c_.dropout < 1)) refuse("dropout", "is {}, expected at least 0 and less than 1", c_.dropout);
  }

  void check_positions() const {
    if (c_.positions > Positions::learned)
      refuse("positions", "is {}, which is not a kind of positions", static_cast<int>(c_.positions));
    if (c_.positions == Positions::rotary && c_.head_dim() % 2 != 0) {
      refuse("positions", "is rotary, which needs an even width / heads, found {}", c_.head_dim());
    }
    within("rotary_base", c_.rotary_base, 1.0, 1e12);
    if (c_.positions == Positions::learned) {
      within("max_length", c_.max_length, 1, kMaxLength);
    } else if (c_.max_length != 0) {
      refuse("max_length", "is {}, expected 0: only learned positions have a maximum", c_.max_length);
    }
  }

  void check_task() const {
    if (c_.task > Task::image) refuse("task", "is {}, which is not a task", static_cast<int>(c_.task));
    const bool image = c_.task == Task::image;
    const bool labels = image || c_.task == Task::classify;
    if (image) {
      absent("vocabulary", c_.vocabulary);
      within("image_size", c_.image_size, 1, kMaxImageSize);
      within("channels", c_.channels, 1, kMaxChannels);
      within("patch", c_.patch, 1, c_.image_size);
      if (c_.image_size % c_.patch != 0)
        refuse("patch", "is {}, expected a divisor of the image_size, {}", c_.patch, c_.image_size);
    } else {
      within("vocabulary", c_.vocabulary, 1, kMaxVocabulary);
      absent("image_size", c_.image_size);
      absent("channels", c_.channels);
      absent("patch", c_.patch);
    }
    if (labels && !c_.tied) refuse("tied", "is false, expected true: task {} has no logits of tokens", name_of(c_.task));
    if (labels) {
      within("classes", c_.classes, 2, kMaxClasses);
    } else {
      absent("classes", c_.classes);
    }
    if (c_.pairs && c_.task != Task::classify) refuse("pairs", "is true, expected false: task {} has no pairs", name_of(c_.task));
  }

  void check_estimators() const {
    const auto count = static_cast<int64_t>(c_.estimators.size());
    if (count != 1 && count != c_.layers)
      refuse("estimators", "has {} entries, expected 1 or one per layer ({})", count, c_.layers);
    for (const Estimator& estimator : c_.estimators) {
      check_size("estimators", estimator);
      check_direction(estimator);
    }
    check_size("cross", c_.cross);
    if (!traits_of(c_.cross).cross)
      refuse("cross", "is {}, expected {}", name_of(c_.cross.kind), kinds_with(&EstimatorTraits::cross));
  }

  void check_size(std::string_view field, const Estimator& estimator) const {
    const auto check = [&](std::string_view key, int64_t value, int64_t min, int64_t max) {
      if (value < min || value > max) refuse(field, "has {} {}, expected {} to {}", key, value, min, max);
    };
    try {
      check_settings(estimator);
    } catch (const InvalidArgument& error) {
      refuse(field, "is not an estimator: {}", without_origin(error.what()));
    }
    check("samples", estimator.samples.value_or(1), 0, kMaxSamples);
    check("window", estimator.window, 1, kMaxWindow);
    check("before", estimator.before, 0, kMaxWindow);
    check("chunk", estimator.chunk, 1, kMaxWindow);
    check("features", estimator.features, 1, kMaxSamples);
    check("per_proposal", estimator.per_proposal, 1, kMaxSamples);
  }

  // Encoders of translate use rfa for gated kinds and softmax for window, so that one name works for both sides.
  void check_direction(const Estimator& estimator) const {
    const bool causal = c_.task == Task::lm || c_.task == Task::translate;
    const EstimatorTraits traits = traits_of(estimator);
    if (causal && !traits.causal) {
      refuse("estimators", "has {}, which has no causal form: task {} needs one", to_string(estimator), name_of(c_.task));
    }
    if (causal && !traits.has_memory) {
      refuse("estimators",
             "has {}, which has no memory of constant size: task {} needs streaming LARA, or EVA with samples above 0",
             to_string(estimator), name_of(c_.task));
    }
    if (!causal && !traits.bidirectional) {
      refuse("estimators", "has {}, which is causal: task {} needs bidirectional attention, use rfa, lara, eva or softmax",
             to_string(estimator), name_of(c_.task));
    }
  }

  void check_memory() const {
    const auto width = static_cast<double>(c_.width);
    double per_layer = width * (12 * width + 3 * static_cast<double>(c_.ffn_width()));
    int64_t samples = c_.cross.samples.value_or(0);
    for (const Estimator& estimator : c_.estimators)
      samples =
          std::max({samples, estimator.samples.value_or(0), estimator.features, 4 * estimator.window * (1 + estimator.before)});
    per_layer += 2 * width * static_cast<double>(samples);
    const double rows = static_cast<double>((c_.tied ? 1 : 2) * c_.vocabulary + c_.max_length + 4 * c_.classes) +
                        static_cast<double>(c_.channels * c_.patch * c_.patch) +
                        (c_.patch > 0 ? std::pow(static_cast<double>(c_.image_size / c_.patch), 2) : 0);
    if (const double total = width * rows + 2 * static_cast<double>(c_.layers) * per_layer; total > kMaxParameters) {
      throw FormatError(
          fmt::format("{}: describes a model of about {:.2g} parameters, expected at most {:.0e}: check width, layers, ffn, "
                      "vocabulary and max_length",
                      where_, total, kMaxParameters));
    }
  }

  const ModelConfig& c_;
  std::string_view where_;
};

}  // namespace

std::string_view name_of(Task task) { return task <= Task::image ? kTasks[static_cast<size_t>(task)] : "unknown"; }
std::string_view name_of(Positions positions) {
  return positions <= Positions::learned ? kPositions[static_cast<size_t>(positions)] : "unknown";
}
std::string_view name_of(Norm norm) { return norm <= Norm::rms ? kNorms[static_cast<size_t>(norm)] : "unknown"; }
std::string_view name_of(FeedForward feed_forward) {
  return feed_forward <= FeedForward::swiglu ? kFeedForwards[static_cast<size_t>(feed_forward)] : "unknown";
}
Task parse_task(std::string_view name) { return parse_name<Task>(kTasks, name, "parse_task"); }
Positions parse_positions(std::string_view name) { return parse_name<Positions>(kPositions, name, "parse_positions"); }
Norm parse_norm(std::string_view name) { return parse_name<Norm>(kNorms, name, "parse_norm"); }
FeedForward parse_feed_forward(std::string_view name) {
  return parse_name<FeedForward>(kFeedForwards, name, "parse_feed_forward");
}

const Estimator& ModelConfig::estimator(int64_t layer) const {
  return estimators.size() == 1 ? estimators.front() : estimators.at(static_cast<size_t>(layer));
}

void ModelConfig::check(std::string_view where) const { Checks(*this, where).run(); }

std::string to_json(const ModelConfig& config) { return config_text(config, config_fields()); }

ModelConfig model_config_from_json(std::string_view text, std::string_view where) {
  return read_config(text, where, config_fields());
}

void save_model_config(const ModelConfig& config, const std::filesystem::path& path) {
  config.check(path.string());
  write_file(path, to_json(config));
}

ModelConfig load_model_config(const std::filesystem::path& path) {
  return model_config_from_json(read_file(path, kMaxBytesOfModelConfig), path.string());
}

}  // namespace raffia
