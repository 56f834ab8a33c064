// Untrusted tok.bin: a FormatError, or a vocabulary that encodes any bytes.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "io/tokenizers/tokenizer_scored.h"
#include "raffia/error.h"
#include "tokenizer_use.h"

using namespace raffia;
using namespace raffia::internal;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(data, size)), "fuzz.bin"));
    use(*tokenizer, std::string_view(reinterpret_cast<const char*>(data), size));
    use(*tokenizer, "");
  } catch (const FormatError&) {
    return 0;
  }
  return 0;
}
