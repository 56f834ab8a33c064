// Untrusted config.json and model.safetensors.index.json of Hugging Face: a FormatError, or a config that can be written, and
// plain file names.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/imports/hf.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const HfConfig config = hf_config(text, "fuzz.json");
    config.model.check("fuzz.json");
    if (model_config_from_json(to_json(config.model), "again.json") != config.model) std::abort();
    if (config.begin >= config.model.vocabulary || config.end >= config.model.vocabulary) std::abort();
  } catch (const FormatError&) {
  }
  try {
    for (const auto& [tensor, file] : hf_index(text, "fuzz.json")) {
      if (file.empty() || file.find('/') != std::string::npos) std::abort();
    }
  } catch (const FormatError&) {
  }
  return 0;
}
