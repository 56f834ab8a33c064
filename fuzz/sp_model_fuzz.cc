// tokenizer.model from anywhere, with the checksum that it should have: it is refused with FormatError, or it takes any bytes and
// gives ids of its vocabulary.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const std::unique_ptr<Tokenizer> tokenizer = sp_tokenizer_over(std::string(bytes), "fuzzed");
    for (const std::string& text :
         {std::string("the words \xC3\xA9\xE2\x96\x81 of a text\n\t 12"), std::string(bytes.substr(0, 200))}) {
      const std::vector<int32_t> ids = tokenizer->encode(text);
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocabulary()) std::abort();
      }
      (void)tokenizer->decode(ids);
    }
  } catch (const Error&) {
    return 0;
  }
  return 0;
}
