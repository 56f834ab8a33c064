// An imported model, and the model directory written from it.
#ifndef RAFFIA_IO_IMPORTS_IMPORTED_MODEL_H_
#define RAFFIA_IO_IMPORTS_IMPORTED_MODEL_H_

#include <filesystem>
#include <functional>
#include <vector>

#include "io/formats/weight_file.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"

namespace raffia::internal {

struct ImportedModel {
  ModelConfig config;
  std::vector<WeightSource> weights;
  std::vector<std::string> classes = {};  // names of the classes, where the model has any
};

struct SaveOptions {
  WeightType type = WeightType::f32;
  bool replace = false;  // replace a model that is already in the directory
  std::function<void(const WeightSource&)> progress = {};
};

// Writes configuration, weights and tokenizer, all of them or none. `tokenizer` may be null (images). Throws IoError.
StorageReport save_model(const ImportedModel& model, const Tokenizer* tokenizer, const std::filesystem::path& directory,
                         const SaveOptions& options);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_IMPORTS_IMPORTED_MODEL_H_
