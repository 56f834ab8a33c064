#include "bench/models.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "bench/error.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/random_weights.h"

namespace raffia::internal::bench {
namespace {

std::string op_of(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const Estimator& estimator : config.estimators) {
    const std::string name = to_string(estimator);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, " "));
}

}  // namespace

void BenchModel::prepare() {
  if (directory.empty()) weights = runtime::random_weights(config, type, seed);
}

std::shared_ptr<const Model> BenchModel::make() {
  if (!directory.empty()) return Model::load(directory, {.map = !no_mmap});
  if (weights.empty()) prepare();
  return Model::over(config, std::move(weights), nullptr, "random weights");
}

int64_t BenchModel::state_bytes_at(int64_t depth) const {
  int64_t growing = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    growing += traits_of(config.estimator(i)).constant_memory ? 0 : 1;
  }
  return growing * depth * 2 * config.key_heads() * config.head_dim() * static_cast<int64_t>(sizeof(float));
}

std::vector<std::vector<BenchModel>> models_of(const ModelChoice& options) {
  std::vector<std::vector<BenchModel>> groups;
  if (!options.directories.empty()) {
    auto& group = groups.emplace_back();
    for (const std::string& directory : options.directories) {
      const std::filesystem::path path(directory);
      const ModelConfig config = load_model_config(path / kConfigFile);
      if (config.task != Task::lm) {
        throw OptionError(fmt::format("--model: {} is for task {}, expected lm", directory, name_of(config.task)));
      }
      const std::filesystem::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
      group.push_back(
          {.op = op_of(config), .name = name.string(), .config = config, .directory = directory, .no_mmap = options.no_mmap});
    }
    return groups;
  }
  for (const WeightType type : options.types) {
    auto& group = groups.emplace_back();
    for (const Estimator& estimator : options.estimators) {
      const ModelConfig config{.vocabulary = options.vocabulary,
                               .width = options.width,
                               .heads = options.heads,
                               .layers = options.layers,
                               .estimators = {estimator},
                               .seed = options.seed};
      try {
        config.check("flags of the model");
      } catch (const FormatError& error) {
        throw OptionError(error.what());
      }
      group.push_back({.op = op_of(config), .config = config, .type = type, .no_mmap = options.no_mmap, .seed = options.seed});
    }
  }
  return groups;
}

}  // namespace raffia::internal::bench
