// Untrusted config.json: a FormatError, or a config that can be written and read back unchanged.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "raffia/error.h"
#include "raffia/model_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const raffia::ModelConfig config = raffia::model_config_from_json(text, "fuzz.json");
    config.check("fuzz.json");
    if (config.width % config.heads != 0 || config.layers < 1) std::abort();
    if (raffia::model_config_from_json(raffia::to_json(config), "again.json") != config) std::abort();
  } catch (const raffia::FormatError&) {
    return 0;
  }
  return 0;
}
