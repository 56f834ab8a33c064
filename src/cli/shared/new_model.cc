#include "cli/shared/new_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/shared/progress.h"
#include "model/model_directory.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

int64_t parameters(const ImportedModel& model) {
  int64_t count = 0;
  for (const WeightSource& weight : model.weights) count += element_count(weight.shape).value_or(0);
  return count;
}

}  // namespace

void require_another_directory(std::string_view name, const std::filesystem::path& from, const std::filesystem::path& to) {
  if (is_same_file(from, to)) {
    throw UsageError(fmt::format("{} is the directory of the source model, expected another", name));
  }
}

StorageReport save_with_progress(const ImportedModel& model, std::string_view from, const Tokenizer* tokenizer,
                                 const std::string& directory, WeightType type, bool replace) {
  Progress progress(static_cast<double>(parameters(model)));
  progress.begin("writing " + directory);
  double before = 0;
  const auto show = [&](const WeightSource& weight) {
    progress.advance(before);
    progress.describe(weight.name);
    before = static_cast<double>(element_count(weight.shape).value_or(0));
  };
  try {
    return save_model(model, tokenizer, directory, {.type = type, .replace = replace, .progress = show});
  } catch (const InvalidArgument& error) {  // weights that cannot be stored
    throw FormatError(fmt::format("{}: {}", from, error.what()));
  }
}

Json describe(const ImportedModel& model, const std::string& directory, WeightType type, const StorageReport& report) {
  const ModelConfig& config = model.config;
  return {{"directory", directory},          {"task", name_of(config.task)},
          {"layers", config.layers},         {"width", config.width},
          {"heads", config.heads},           {"kv_heads", config.key_heads()},
          {"vocabulary", config.vocabulary}, {"parameters", parameters(model)},
          {"type", name_of(type)},           {"bytes", report.bytes}};
}

}  // namespace raffia::internal::cli
