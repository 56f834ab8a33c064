// A model directory in the making: its files are written aside and appear together when all are complete.
#ifndef RAFFIA_IO_MODEL_DIRECTORY_H_
#define RAFFIA_IO_MODEL_DIRECTORY_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "io/file.h"
#include "raffia/model_config.h"

namespace raffia {

// Files of a model directory (docs/model-format.md).
constexpr const char* kConfigFile = "config.json";
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kTokenizerFile = "tokenizer.json";

// Metadata of a weight file that name the configuration and the tokenizer (its fingerprint; 0: none) it was saved with: damage to
// either is found when the model is loaded. Files without them are taken as they are.
std::map<std::string, std::string> seals_of(const ModelConfig& config, uint64_t tokenizer);
// Throws FormatError that names the file of the directory that is not the one.
void require_seals(const std::map<std::string, std::string>& metadata, const ModelConfig& config, uint64_t tokenizer,
                   std::string_view directory);

// Both are there, and one file or directory, whatever their names: for those that must not write over what they read.
bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b);

// Whether writing to `path` would replace a part of the model in `directory`: a name that models use there, whether or not this
// one has such a file, or any file in it but a saved session, under whatever name.
bool is_file_of_model(const std::filesystem::path& path, const std::filesystem::path& directory);

//   NewModelDirectory directory("model", {.replace = false});
//   save_model_config(config, directory.path() / kConfigFile);
//   ...
//   directory.commit();
//
// Without commit(), the target stays as it was and nothing is left beside it.
class NewModelDirectory {
 public:
  struct Options {
    bool replace = false;  // a target that holds a model is replaced; else it is refused
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

}  // namespace raffia

#endif  // RAFFIA_IO_MODEL_DIRECTORY_H_
