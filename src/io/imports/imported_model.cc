#include "io/imports/imported_model.h"

#include "core/check.h"
#include "io/data/datasets.h"
#include "model/model_directory.h"

namespace raffia::internal {

StorageReport save_model(const ImportedModel& model, const Tokenizer* tokenizer, const std::filesystem::path& directory,
                         const SaveOptions& options) {
  require(tokenizer == nullptr || tokenizer->vocabulary() == model.config.vocabulary,
          "save_model: the tokenizer has {} pieces, expected {} (vocabulary of the model)",
          tokenizer == nullptr ? 0 : tokenizer->vocabulary(), model.config.vocabulary);
  NewModelDirectory fresh(directory, {.replace = options.replace});
  save_model_config(model.config, fresh.path() / kConfigFile);
  if (tokenizer != nullptr) tokenizer->save(fresh.path());
  if (!model.classes.empty()) save_classes(model.classes, fresh.path());
  StorageReport report = write_weights(fresh.path() / kWeightsFile, model.weights, options.type, options.progress,
                                       seals_of(model.config, tokenizer == nullptr ? 0 : tokenizer->fingerprint()));
  fresh.commit();
  return report;
}

}  // namespace raffia::internal
