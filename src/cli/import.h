// What commands that write model directories share.
#ifndef RAFFIA_CLI_IMPORT_H_
#define RAFFIA_CLI_IMPORT_H_

#include <filesystem>
#include <string>
#include <string_view>

#include "cli/table.h"
#include "core/weight_matrix.h"
#include "io/imported_model.h"

namespace raffia::cli {

// Refuses to write a model over the one that is read; `name` is that of the argument.
void require_another_directory(std::string_view name, const std::filesystem::path& from, const std::filesystem::path& to);

// Saves with a progress bar on stderr.
StorageReport save_with_progress(const ImportedModel& model, const Tokenizer* tokenizer, const std::string& directory,
                                 WeightType type, bool replace);

// What a model is made of and what was written, for --json.
Json describe(const ImportedModel& model, const std::string& directory, WeightType type, const StorageReport& report);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_IMPORT_H_
