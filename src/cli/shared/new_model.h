// Common to commands that write model directories.
#ifndef RAFFIA_CLI_SHARED_NEW_MODEL_H_
#define RAFFIA_CLI_SHARED_NEW_MODEL_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/shared/command.h"
#include "core/weight_matrix.h"
#include "io/imports/imported_model.h"

namespace raffia::internal::cli {

// Throws if a model would be written over the one that is read; `name` is the name of the argument.
void require_another_directory(std::string_view name, const std::filesystem::path& from, const std::filesystem::path& to);

// Saves with a progress bar on stderr. `from` is where the weights come from: errors about them name it.
StorageReport save_with_progress(const ImportedModel& model, std::string_view from, const Tokenizer* tokenizer,
                                 const std::string& directory, WeightType type, bool replace);

// The architecture of a model and what was written, for --json.
Json describe(const ImportedModel& model, const std::string& directory, WeightType type, const StorageReport& report);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_NEW_MODEL_H_
