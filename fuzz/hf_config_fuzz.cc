// Untrusted config.json and model.safetensors.index.json of Hugging Face: a FormatError, or a config that can be written, and
// plain file names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/imports/hf.h"
#include "raffia/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const raffia::HfConfig config = raffia::hf_config(text, "fuzz.json");
    config.model.check("fuzz.json");
    if (raffia::model_config_from_json(raffia::to_json(config.model), "again.json") != config.model) std::abort();
    if (config.begin >= config.model.vocabulary || config.end >= config.model.vocabulary) std::abort();
  } catch (const raffia::FormatError&) {
  }
  try {
    for (const auto& [tensor, file] : raffia::hf_index(text, "fuzz.json")) {
      if (file.empty() || file.find('/') != std::string::npos) std::abort();
    }
  } catch (const raffia::FormatError&) {
  }
  return 0;
}
