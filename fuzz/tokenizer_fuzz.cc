// Untrusted tokenizer.json: a FormatError (or IoError for the file that it names), or a tokenizer that encodes any bytes to ids
// of its vocabulary, which can be decoded.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "tokenizer_use.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::unique_ptr<raffia::Tokenizer> tokenizer = raffia::tokenizer_from_json(text, "/nonexistent");
    use(*tokenizer, text);
    use(*tokenizer, std::string(text.rbegin(), text.rend()));
    if (tokenizer->fingerprint() != raffia::tokenizer_from_json(text, "/nonexistent")->fingerprint()) std::abort();
  } catch (const raffia::FormatError&) {
    return 0;
  } catch (const raffia::IoError&) {
    return 0;
  }
  return 0;
}
