// Untrusted tokenizer.json of Hugging Face: a FormatError, or a vocabulary that encodes any bytes. The fuzzer extends a
// vocabulary of all bytes, which it would not find by chance.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/imports/hf_tokenizer.h"
#include "raffia/error.h"
#include "tokenizer_use.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

constexpr int64_t kVocabulary = 1024;
constexpr std::string_view kMark = "\xE2\x96\x81";

// "@bytes@" in the text is replaced by the pieces of all bytes, with ids from 500.
std::string with_bytes(std::string_view text) {
  constexpr std::string_view kPlace = "@bytes@";
  const size_t at = text.find(kPlace);
  if (at == std::string_view::npos) return std::string(text);
  std::string pieces;
  for (int byte = 0; byte < 256; ++byte) pieces += fmt::format("\"<0x{:02X}>\":{},", byte, 500 + byte);
  for (int byte = 0, free = 256; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    pieces += fmt::format("\"\\u{:04x}\":{}{}", visible ? byte : free++, 756 + byte, byte == 255 ? "" : ",");
  }
  return std::string(text.substr(0, at)) + pieces + std::string(text.substr(at + kPlace.size()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string tokenizer_json = with_bytes(text);
  try {
    BpeModel model =
        bpe_from_hf({.tokenizer = tokenizer_json, .tokenizer_config = "", .where = "fuzz.json", .where_config = ""}, kVocabulary);
    // Special pieces are skipped, and a mark is decoded as a space; everything else is decoded exactly.
    const bool comes_back = model.added.empty() && (model.form == BpeForm::bytes || (text.find(kMark) == std::string_view::npos &&
                                                                                     model.leading_space == LeadingSpace::none));
    const auto tokenizer = make_bpe_tokenizer(std::move(model), "fuzz.json");
    if (comes_back && tokenizer->decode(tokenizer->encode(text)) != text) std::abort();
    use(*tokenizer, text);
    use(*tokenizer, "");
  } catch (const FormatError&) {
    return 0;
  }
  return 0;
}
