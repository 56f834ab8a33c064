// Models of the LLaMA architecture in the format of Hugging Face: config.json, model.safetensors (or parts with an index),
// tokenizer.json.
#ifndef RAFFIA_IO_IMPORTS_HF_H_
#define RAFFIA_IO_IMPORTS_HF_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "io/imports/imported_model.h"

namespace raffia::internal {

struct HfConfig {
  ModelConfig model;
  int32_t begin = -1, end = -1;  // bos_token_id and (the first) eos_token_id; -1: not given
};

// The config.json of models of type llama, and of mistral without a sliding window. Settings that would change what the model
// computes (scaled rotary angles, other activations, biases, quantized weights) are a FormatError that names them; fields
// without an effect are ignored.
HfConfig hf_config(std::string_view text, std::string_view where);

// model.safetensors.index.json: the file of each tensor, by its name. Names of files are plain. Throws FormatError.
std::map<std::string, std::string> hf_index(std::string_view text, std::string_view where);

struct HfModel {
  ImportedModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  bool all_bf16 = false;  // all matrices are stored as bf16
};

// Every tensor is checked by name and shape. Throws IoError or FormatError.
HfModel load_hf(const std::filesystem::path& directory);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_IMPORTS_HF_H_
