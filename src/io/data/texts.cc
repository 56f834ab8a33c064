#include "io/data/texts.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

// A line of its own between the texts of one file.
constexpr std::string_view kBetweenTexts = "<|endoftext|>";

// Without surrounding white space; empty texts are skipped.
std::vector<std::string_view> texts_within(std::string_view file) {
  constexpr std::string_view kWhite = " \t\r\n";
  std::vector<std::string_view> texts;
  while (!file.empty()) {
    const size_t end = std::min(file.find(kBetweenTexts), file.size());
    std::string_view text = file.substr(0, end);
    file.remove_prefix(std::min(end + kBetweenTexts.size(), file.size()));
    const size_t first = text.find_first_not_of(kWhite);
    if (first == std::string_view::npos) continue;
    texts.push_back(text.substr(first, text.find_last_not_of(kWhite) + 1 - first));
  }
  return texts;
}

}  // namespace

std::string read_for(std::string_view kind, const std::filesystem::path& path) {
  if (kind != "byte") return read_text_file(path);
  std::string bytes = read_text_bytes(path);
  if (bytes.empty()) throw FormatError(fmt::format("{}: the file is empty", path.string()));
  return bytes;
}

std::vector<int32_t> encode_text(const Tokenizer& tokenizer, std::string_view text) {
  if (!tokenizer.begins_texts()) return tokenizer.encode(text);
  std::vector<int32_t> ids;
  for (const std::string_view one : texts_within(text)) {
    ids.push_back(tokenizer.begin());
    const std::vector<int32_t> own = tokenizer.encode(one);
    ids.insert(ids.end(), own.begin(), own.end());
  }
  return ids;
}

}  // namespace raffia::internal
