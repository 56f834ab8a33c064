// Pieces of words by byte pair encoding, trained by SentencePiece. Characters without a piece are encoded as bytes, so that any
// text is decoded exactly.
#include <fmt/format.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/check.h"
#include "io/formats/text.h"
#include "io/tokenizers/byte_pieces.h"
#include "io/tokenizers/sentencepiece_model.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr std::string_view kModelFile = "tokenizer.model";
constexpr uint64_t kMaxBytesOfModel = uint64_t{1} << 26;
constexpr int64_t kDefaultSize = 4000;
constexpr size_t kBytePieces = 256;
constexpr size_t kFixedPieces = kSpecialIds + kBytePieces + 1;  // and the end of a line

// SentencePiece writes a space as U+2581, keeps U+2585 and the tab to itself, and skips training lines that hold them. In texts,
// these characters are bytes.
constexpr std::string_view kReserved[] = {kSpaceMark, "\xE2\x96\x85", "\t"};

constexpr size_t kLongestSentence = 4000;               // bytes; SentencePiece skips those above 4192
constexpr size_t kMaxTrainingBytes = size_t{64} << 20;  // more text makes training slower, hardly better

// How many bytes at text[at] are a reserved character; 0: none.
size_t reserved_size(std::string_view text, size_t at) {
  if (text[at] != '\t' && text[at] != kSpaceMark[0]) return 0;
  for (const std::string_view reserved : kReserved) {
    if (text.substr(at).starts_with(reserved)) return reserved.size();
  }
  return 0;
}

// The parts of a text between characters that it is cut at: cut(text, at) is how many bytes to leave out at text[at].
template <typename Cut>
void add_parts(std::string_view text, const Cut& cut, std::vector<std::string_view>& parts) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t gap = cut(text, at);
    if (gap == 0) {
      at += character_size(text, at);
    } else {
      if (at > begin) parts.push_back(text.substr(begin, at - begin));
      begin = at += gap;
    }
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
}

// A line in sentences that are short enough, cut where a word begins if there is such a place.
void add_sentences(std::string_view line, std::vector<std::string_view>& sentences) {
  while (line.size() > kLongestSentence) {
    size_t end = line.rfind(' ', kLongestSentence);
    if (end == std::string_view::npos || end == 0) {
      end = kLongestSentence;
      while ((static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) --end;
    }
    sentences.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  sentences.push_back(line);
}

std::vector<std::string_view> sentences_of(Texts texts) {
  std::vector<std::string_view> lines, sentences;
  const auto cut = [](std::string_view text, size_t at) { return text[at] == '\n' ? 1 : reserved_size(text, at); };
  for (const std::string_view text : texts) add_parts(text, cut, lines);
  for (const std::string_view line : lines) add_sentences(line, sentences);
  return sentences;
}

// Every n-th sentence of a text that is too long to learn from.
void thin_out(std::vector<std::string_view>& sentences) {
  size_t bytes = 0;
  for (const std::string_view sentence : sentences) bytes += sentence.size();
  const size_t stride = (bytes + kMaxTrainingBytes - 1) / kMaxTrainingBytes;
  if (stride <= 1) return;
  size_t kept = 0;
  for (size_t i = 0; i < sentences.size(); i += stride) sentences[kept++] = sentences[i];
  sentences.resize(kept);
}

// Characters that are rarer than the `places` most frequent ones; ties in the order of bytes.
std::unordered_set<std::string_view> rare_characters(const std::vector<std::string_view>& sentences, size_t places) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const std::string_view sentence : sentences) {
    for (size_t at = 0, size = 0; at < sentence.size(); at += size) {
      size = character_size(sentence, at);
      ++counts[sentence.substr(at, size)];
    }
  }
  std::vector<std::pair<int64_t, std::string_view>> ranked;
  for (const auto& [character, count] : counts) ranked.emplace_back(-count, character);
  std::ranges::sort(ranked);
  std::unordered_set<std::string_view> rare;
  for (size_t i = places; i < ranked.size(); ++i) rare.insert(ranked[i].second);
  return rare;
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(const std::vector<std::string_view>& sentences) : sentences_(sentences) { show(); }
  bool done() const override { return at_ == sentences_.size(); }
  void Next() override {
    ++at_;
    show();
  }
  const std::string& value() const override { return shown_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  void show() {
    if (!done()) shown_ = sentences_[at_];
  }

  const std::vector<std::string_view>& sentences_;
  size_t at_ = 0;
  std::string shown_;
};

class SpTokenizer : public Tokenizer {
 public:
  // Throws FormatError; `where` names the model.
  SpTokenizer(std::string model, std::string_view where) : model_(std::move(model)) {
    const auto refuse = [where](std::string_view what) { throw FormatError(fmt::format("{}: {}", where, what)); };
    check_sentencepiece_model(model_, where);
    if (const auto status = processor_.LoadFromSerializedProto(model_); !status.ok()) {
      refuse(fmt::format("is not a SentencePiece model: {}", status.ToString()));
    }
    if (processor_.pad_id() != kPad || processor_.unk_id() != kUnknown || processor_.bos_id() != kBegin ||
        processor_.eos_id() != kEnd) {
      refuse(fmt::format("has pad, unknown, begin and end at {}, {}, {} and {}, expected 0, 1, 2 and 3", processor_.pad_id(),
                         processor_.unk_id(), processor_.bos_id(), processor_.eos_id()));
    }
    byte_ids_.fill(kUnknown);
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      surfaces_.push_back(id < kSpecialIds ? "" : surface_of(id));
      if (processor_.IsByte(id)) byte_ids_[static_cast<unsigned char>(surfaces_.back()[0])] = id;
      if (id >= kSpecialIds && surfaces_.back() == "\n" && !processor_.IsByte(id)) line_end_ = id;
    }
    if (std::ranges::find(byte_ids_, kUnknown) != byte_ids_.end())
      refuse("has no pieces for some single bytes, expected all 256");
    if (line_end_ == kUnknown) refuse("has no piece for the end of a line");
  }

  std::string kind() const override { return "sp"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(surfaces_.size()); }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), model_); }
  void save(const std::filesystem::path& directory) const override {
    write_file(directory / kModelFile, model_);
    save_tokenizer_file(directory, kind(), {{"model", kModelFile}, {"checksum", fingerprint()}});
  }

  // No piece reaches from one word into the next, so words can be encoded one by one, each once.
  std::vector<int32_t> encode(std::string_view text) const override {
    std::unordered_map<std::string_view, std::vector<int32_t>> known;
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      if (text[at] == '\n') {
        ids.push_back(line_end_);
        ++at;
      } else if (const size_t reserved = reserved_size(text, at); reserved > 0) {
        for (const size_t end = at + reserved; at < end; ++at) ids.push_back(byte_ids_[static_cast<unsigned char>(text[at])]);
      } else {
        const size_t end = end_of_word(text, at);
        const std::string_view word = text.substr(at, end - at);
        const auto [entry, fresh] = known.try_emplace(word);
        if (fresh) entry->second = encode_word(word);
        ids.insert(ids.end(), entry->second.begin(), entry->second.end());
        at = end;
      }
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (!is_special(id, vocabulary())) text += surfaces_[static_cast<size_t>(id)];
    }
    return text;
  }

 private:
  // A word with the space before it, if any.
  static size_t end_of_word(std::string_view text, size_t begin) {
    size_t at = begin + 1;
    while (at < text.size() && text[at] != ' ' && text[at] != '\n' && reserved_size(text, at) == 0) ++at;
    return at;
  }

  std::vector<int32_t> encode_word(std::string_view word) const {
    std::vector<int> ids;
    // SentencePiece replaces what is not UTF-8; bytes keep it.
    if (first_byte_not_text(word)) {
      for (const char byte : word) ids.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
      return ids;
    }
    if (const auto status = processor_.Encode(word, &ids); !status.ok()) {
      throw Error(fmt::format("SentencePiece cannot encode a word: {}", status.ToString()));
    }
    return ids;
  }

  std::string surface_of(int id) const {
    const std::string& piece = processor_.IdToPiece(id);
    if (processor_.IsByte(id)) {  // "<0x0A>"
      return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
    }
    std::string surface;
    for (size_t at = 0; at < piece.size();) {
      const bool space = std::string_view(piece).substr(at).starts_with(kSpaceMark);
      surface += space ? ' ' : piece[at];
      at += space ? kSpaceMark.size() : 1;
    }
    return surface;
  }

  std::string model_;
  sentencepiece::SentencePieceProcessor processor_;
  std::vector<std::string> surfaces_;  // by id
  std::array<int32_t, kBytePieces> byte_ids_{};
  int32_t line_end_ = kUnknown;
};

}  // namespace

std::unique_ptr<Tokenizer> train_sp_tokenizer(Texts texts, int64_t size) {
  const int64_t pieces = size == 0 ? kDefaultSize : size;
  require(pieces > static_cast<int64_t>(kFixedPieces) + 4,
          "train_tokenizer: sp:{}, expected more than {} pieces (bytes alone take 256)", pieces, kFixedPieces + 4);
  std::vector<std::string_view> sentences = sentences_of(texts);
  thin_out(sentences);
  require(!sentences.empty(), "train_tokenizer: sp: the text has only line ends, expected words to train on");
  // Pieces hold the most frequent characters; the others are left to bytes, or an alphabet of thousands would take all places.
  if (const auto rare = rare_characters(sentences, (static_cast<size_t>(pieces) - kFixedPieces) * 3 / 4); !rare.empty()) {
    std::vector<std::string_view> whole = std::exchange(sentences, {});
    const auto cut = [&rare](std::string_view text, size_t at) {
      const std::string_view character = text.substr(at, character_size(text, at));
      return rare.contains(character) ? character.size() : 0;
    };
    for (const std::string_view sentence : whole) add_parts(sentence, cut, sentences);
  }
  const std::unordered_map<std::string, std::string> options = {
      {"model_type", "bpe"},
      {"vocab_size", fmt::format("{}", pieces)},
      {"hard_vocab_limit", "false"},  // a short text may not hold that many pieces
      {"character_coverage", "1.0"},
      {"byte_fallback", "true"},
      {"user_defined_symbols", "\n"},
      {"normalization_rule_name", "identity"},
      {"remove_extra_whitespaces", "false"},
      {"add_dummy_prefix", "false"},
      {"pad_id", "0"},
      {"unk_id", "1"},
      {"bos_id", "2"},
      {"eos_id", "3"},
      {"num_threads", "2"},
      {"minloglevel", "2"},
  };
  std::string model;
  Sentences iterator(sentences);
  if (const auto status = sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model); !status.ok()) {
    throw InvalidArgument(fmt::format("train_tokenizer: sp:{} cannot be trained on this text: {}", pieces, status.ToString()));
  }
  return std::make_unique<SpTokenizer>(std::move(model), "train_tokenizer");
}

std::unique_ptr<Tokenizer> sp_tokenizer_over(std::string model, std::string_view where) {
  return std::make_unique<SpTokenizer>(std::move(model), where);
}

std::unique_ptr<Tokenizer> sp_tokenizer_from(JsonFields& fields, const std::filesystem::path& directory) {
  if (const std::string name = fields.string("model"); name != kModelFile) {
    fields.refuse("model", fmt::format("names another file, expected \"{}\"", kModelFile));
  }
  const uint64_t checksum = fields.unsigned_integer("checksum");
  const std::filesystem::path path = directory / kModelFile;
  std::string model = read_file(path, kMaxBytesOfModel);
  if (const uint64_t found = tokenizer_fingerprint("sp", model); found != checksum) {
    throw FormatError(fmt::format("{}: has checksum {:016x}, expected {:016x} ({}): it is not the model that was saved",
                                  path.string(), found, checksum, kTokenizerFile));
  }
  return sp_tokenizer_over(std::move(model), path.string());
}

}  // namespace raffia::internal
