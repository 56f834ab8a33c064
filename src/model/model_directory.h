// Writes a model directory: its files are written to a temporary directory and moved when all are complete.
#ifndef RAFFIA_MODEL_MODEL_DIRECTORY_H_
#define RAFFIA_MODEL_MODEL_DIRECTORY_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/sibling_api.h"
#include "io/formats/file.h"
#include "io/tokenizers/tokenizer_file.h"
#include "raffia/model_config.h"

namespace raffia::internal {

// Files of a model directory (docs/model-format.md).
constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";
// and kTokenizerFile

// Metadata of a weight file with checksums of the configuration and the tokenizer (its fingerprint; 0: none) it was saved with.
// Damage to either is found when the model is loaded. Files without them are not checked.
RAFFIA_SIBLING_API std::map<std::string, std::string> seals_of(const ModelConfig& config, uint64_t tokenizer);
// Throws FormatError, which names the file of the directory that does not match.
void require_seals(const std::map<std::string, std::string>& metadata, const ModelConfig& config, uint64_t tokenizer,
                   std::string_view directory);

// Whether both exist and are the same file or directory: for commands that must not overwrite what they read.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);

// Whether writing to `path` would replace a part of a model. Of the model in `directory` (empty: none): a file name that models
// use, even if this model has no such file, or any existing file in it except a saved session. Of any other model: a file name
// that models use beside a configuration, or an existing file of a training run.
bool is_file_of_model(const std::filesystem::path& path, const std::filesystem::path& directory);

//   NewModelDirectory directory("model", {.replace = false});
//   save_model_config(config, directory.path() / kConfigFile);
//   ...
//   directory.commit();
//
// Without commit(), the target is not changed and the temporary files are removed.
class NewModelDirectory {
 public:
  struct Options {
    bool replace = false;  // replace a model in the target; otherwise it is an error
  };

  // Throws IoError. The parent of the target must exist; the target may.
  NewModelDirectory(std::filesystem::path target, const Options& options);
  NewModelDirectory(const NewModelDirectory&) = delete;
  NewModelDirectory& operator=(const NewModelDirectory&) = delete;

  const std::filesystem::path& path() const { return aside_.path(); }  // where files are written
  void commit();

 private:
  std::filesystem::path target_;
  TemporaryEntry aside_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_MODEL_MODEL_DIRECTORY_H_
