// Every byte is a token: any file, no unknowns, the longest sequences.
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/tokenizers/tokenizer_kinds.h"

namespace raffia::internal {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int64_t vocabulary() const override { return kSpecialIds + 256; }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), ""); }
  void save(const std::filesystem::path& directory) const override {
    save_tokenizer_file(directory, kind(), nlohmann::ordered_json::object());
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    for (size_t i = 0; i < text.size(); ++i) ids[i] = kSpecialIds + static_cast<unsigned char>(text[i]);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (!is_special(id, vocabulary())) text += static_cast<char>(id - kSpecialIds);
    }
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace raffia::internal
