// Words between whitespace, as word-level corpora (WikiText) come. The end of a line is a word of its own, "\n".
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "io/formats/text.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr std::string_view kLineEnd = "\n";
constexpr std::string_view kWhitespace = " \t\n\v\f\r";

// Calls use(word) for each word of the text in order, line ends included.
template <typename Use>
void for_each_word(std::string_view text, const Use& use) {
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\n') {
      use(text.substr(at++, 1));
    } else if (kWhitespace.find(text[at]) != std::string_view::npos) {
      ++at;
    } else {
      const size_t begin = at;
      while (at < text.size() && kWhitespace.find(text[at]) == std::string_view::npos) ++at;
      use(text.substr(begin, at - begin));
    }
  }
}

class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(std::vector<std::string> words) : words_(std::move(words)) {
    ids_.reserve(words_.size());
    for (const std::string& word : words_) ids_.emplace(word, static_cast<int32_t>(kSpecialIds + ids_.size()));
  }
  WordTokenizer(const WordTokenizer&) = delete;  // ids_ points into words_
  WordTokenizer& operator=(const WordTokenizer&) = delete;

  std::string kind() const override { return "word"; }
  int64_t vocabulary() const override { return kSpecialIds + static_cast<int64_t>(words_.size()); }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), fmt::format("{}", fmt::join(words_, " "))); }
  void save(const std::filesystem::path& directory) const override {
    save_tokenizer_file(directory, kind(), {{"words", words_}});
  }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for_each_word(text, [&](std::string_view word) {
      const auto found = ids_.find(word);
      ids.push_back(found == ids_.end() ? kUnknown : found->second);
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (is_special(id, vocabulary())) continue;
      const std::string& word = words_[static_cast<size_t>(id - kSpecialIds)];
      if (!text.empty() && text.back() != '\n' && word != kLineEnd) text += ' ';
      text += word;
    }
    return text;
  }

 private:
  std::vector<std::string> words_;  // by id, after the special ones
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace

// The end of a line comes first, then the most frequent words; ties in the order of bytes.
std::unique_ptr<Tokenizer> train_word_tokenizer(Texts texts, int64_t size) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const std::string_view text : texts) {
    for_each_word(text, [&counts](std::string_view word) { ++counts[word]; });
  }
  counts.erase(kLineEnd);
  std::vector<std::pair<std::string_view, int64_t>> ranked(counts.begin(), counts.end());
  std::ranges::sort(ranked,
                    [](const auto& a, const auto& b) { return std::pair(-a.second, a.first) < std::pair(-b.second, b.first); });
  const auto max = static_cast<size_t>(size == 0 ? kMaxTokens - kSpecialIds : size);
  std::vector<std::string> words = {std::string(kLineEnd)};
  for (size_t i = 0; i < ranked.size() && words.size() < max; ++i) words.emplace_back(ranked[i].first);
  return std::make_unique<WordTokenizer>(std::move(words));
}

std::unique_ptr<Tokenizer> word_tokenizer_from(JsonFields& fields) {
  std::vector<std::string> words = fields.strings("words");
  if (words.empty() || words.front() != kLineEnd) fields.refuse("words", R"(does not begin with "\n")");
  if (words.size() > static_cast<size_t>(kMaxTokens)) fields.refuse("words", fmt::format("has {} entries", words.size()));
  std::unordered_map<std::string_view, size_t> places;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0 && (words[i].empty() || words[i].find_first_of(kWhitespace) != std::string::npos)) {
      fields.refuse("words", fmt::format("is empty or has white space at index {}", i));
    }
    if (const auto [other, fresh] = places.emplace(words[i], i); !fresh) {
      fields.refuse("words", fmt::format("has the same word at indices {} and {}", other->second, i));
    }
  }
  return std::make_unique<WordTokenizer>(std::move(words));
}

}  // namespace raffia::internal
