// tokenizer.json from anywhere: it is refused with FormatError (or IoError for the file that it names), or it takes any bytes and
// gives ids of its vocabulary, which stand for text again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/tokenizer.h"
#include "raffia/error.h"

namespace {

void use(const raffia::Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  bool known = true;
  for (const int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocabulary()) std::abort();
    known = known && id != raffia::Tokenizer::kUnknown;
  }
  // What was decoded says the same again; without unknowns it is the text, but for the spacing of words.
  const std::string decoded = tokenizer.decode(ids);
  if (known && tokenizer.encode(decoded) != ids) std::abort();
  if (known && tokenizer.kind() != "word" && decoded != text) std::abort();
}

}  // namespace

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
