#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/model_bench.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/weight_types.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/random_weights.h"

namespace raffia::cli {
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

void add_model_flags(CommandLine& command, ModelFlags& flags) {
  std::vector<Flag> of_random = {add_positive(command, "--layers", flags.layers, "Layers of the models"),
                                 add_positive(command, "--width", flags.width, "Width E of the models"),
                                 add_positive(command, "--heads", flags.heads, "Heads, a divisor of --width"),
                                 add_positive(command, "--vocabulary", flags.vocabulary, "Number of token ids")};
  std::vector<std::string> defaults;
  for (const Estimator& estimator : flags.estimators) defaults.push_back(to_string(estimator));
  of_random.push_back(command
                          .add_parsed(
                              "--estimators",
                              [&flags](const std::string& text) {
                                flags.estimators.clear();
                                for (const std::string& spec : split_estimators("--estimators", text)) {
                                  flags.estimators.push_back(parse_estimator_of("--estimators", spec));
                                }
                              },
                              "Estimators to compare, one model of each")
                          .type_name("LIST")
                          .default_text(fmt::format("{}", fmt::join(defaults, ","))));
  of_random.push_back(add_names(command, "--type", kWeightTypes, flags.types, "Storage type of weights: f32, bf16, int8"));
  of_random.push_back(add_seed(command, "--seed", flags.seed, "Seed of the weights"));
  const Flag model = command
                         .add_repeated(
                             "--model", [&flags](const std::string& directory) { flags.directories.push_back(directory); },
                             "Measure the model in this directory instead; may be repeated")
                         .type_name("DIR");
  for (Flag option : of_random) option.excludes(model);
  add_no_mmap(command, flags.no_mmap);
}

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

std::vector<std::vector<BenchModel>> models_of(const ModelFlags& flags) {
  std::vector<std::vector<BenchModel>> groups;
  if (!flags.directories.empty()) {
    auto& group = groups.emplace_back();
    for (const std::string& directory : flags.directories) {
      const std::filesystem::path path(directory);
      const ModelConfig config = load_model_config(path / kConfigFile);
      if (config.task != Task::lm) {
        throw UsageError(fmt::format("--model: {} is for task {}, expected lm", directory, name_of(config.task)));
      }
      const std::filesystem::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
      group.push_back(
          {.op = op_of(config), .name = name.string(), .config = config, .directory = directory, .no_mmap = flags.no_mmap});
    }
    return groups;
  }
  for (const WeightType type : flags.types) {
    auto& group = groups.emplace_back();
    for (const Estimator& estimator : flags.estimators) {
      const ModelConfig config{.vocabulary = flags.vocabulary,
                               .width = flags.width,
                               .heads = flags.heads,
                               .layers = flags.layers,
                               .estimators = {estimator},
                               .seed = flags.seed};
      try {
        config.check("flags of the model");
      } catch (const FormatError& error) {
        throw UsageError(error.what());
      }
      group.push_back({.op = op_of(config), .config = config, .type = type, .no_mmap = flags.no_mmap, .seed = flags.seed});
    }
  }
  return groups;
}

}  // namespace raffia::cli
