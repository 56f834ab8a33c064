// Models of the LLaMA architecture as Hugging Face keeps them: config.json, model.safetensors (or parts with an index),
// tokenizer.json.
#ifndef RAFFIA_IO_HF_H_
#define RAFFIA_IO_HF_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "io/imported_model.h"

namespace raffia {

struct HfConfig {
  ModelConfig model;
  int32_t begin = -1, end = -1;  // bos_token_id and (the first) eos_token_id; -1: not given
};

// What models of type llama, and mistral without a sliding window, say of themselves. Whatever would make the model compute
// something else (scaled rotary angles, other activations, biases, quantised weights) is a FormatError that names it; fields that
// change nothing are passed over.
HfConfig hf_config(std::string_view text, std::string_view where);

// model.safetensors.index.json: the file of each tensor, by its name. Names of files are plain. Throws FormatError.
std::map<std::string, std::string> hf_index(std::string_view text, std::string_view where);

struct HfModel {
  ImportedModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  bool all_bf16 = false;  // the matrices are stored so
};

// Every tensor is checked by name and shape. Throws IoError or FormatError.
HfModel load_hf(const std::filesystem::path& directory);

}  // namespace raffia

#endif  // RAFFIA_IO_HF_H_
