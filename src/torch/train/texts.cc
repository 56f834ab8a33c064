#include "torch/train/texts.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "core/check.h"

namespace raffia::internal::train {
namespace {

constexpr size_t kEnoughForPieces = 1'000'000;  // bytes of text from which a SentencePiece vocabulary is worthwhile

TokenizerSpec spec_of(const TrainOptions& options) { return parse_option("tokenizer", options.tokenizer, parse_tokenizer_spec); }

std::string read_one(const TrainOptions& options, const std::string& path) {
  if (!options.init.empty()) return read_for(options.tokenizer, path);
  return read_for(options.tokenizer == "auto" ? "char" : spec_of(options).kind, path);
}

// Where the last `share` of the text begins.
size_t split_at(std::string_view text, double share) {
  const auto about = static_cast<size_t>(static_cast<double>(text.size()) * (1 - share));
  const size_t line = text.find('\n', about);
  // A line that begins within a tenth of the share is near; else the next character will do.
  const auto near = static_cast<size_t>(static_cast<double>(text.size()) * share / 10);
  if (line != std::string_view::npos && line - about <= near && line + 1 < text.size()) return line + 1;
  size_t at = about;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

}  // namespace

ScoredText scored_text(const Tokenizer& tokenizer, std::string_view text) {
  ScoredText scored{.ids = encode_text(tokenizer, text)};
  scored.facts = count_text(text, static_cast<int64_t>(scored.ids.size()));
  return scored;
}

Sequences encode_all(const Tokenizer& tokenizer, std::span<const std::string> texts) {
  Sequences ids;
  for (const std::string& text : texts) ids.push_back(tokenizer.encode(text));
  return ids;
}

Texts read_texts(const TrainOptions& options) {
  require(!options.data.empty(), "--data is missing: the file to train on");
  Texts texts{.train = read_one(options, options.data), .valid = {}};
  if (options.valid.empty()) {
    const size_t at = split_at(texts.train, options.valid_share);
    texts.valid = texts.train.substr(at);
    texts.train.resize(at);
  } else {
    texts.valid = read_one(options, options.valid);
  }
  if (!options.test.empty()) texts.test = read_one(options, options.test);
  return texts;
}

std::unique_ptr<Tokenizer> task_tokenizer(TrainOptions& options, bool goes_on, std::span<const std::string_view> texts) {
  if (goes_on) return load_tokenizer(options.out);
  if (!options.init.empty()) return load_tokenizer(options.init);
  if (options.tokenizer == "auto") {
    const size_t bytes =
        std::accumulate(texts.begin(), texts.end(), size_t{0}, [](size_t sum, std::string_view t) { return sum + t.size(); });
    options.tokenizer = bytes > kEnoughForPieces ? "sp:4000" : "char";
  }
  return train_tokenizer(spec_of(options), texts);
}

}  // namespace raffia::internal::train
