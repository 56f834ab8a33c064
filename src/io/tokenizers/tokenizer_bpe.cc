#include "io/tokenizers/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "io/formats/text.h"
#include "io/tokenizers/byte_pieces.h"
#include "io/tokenizers/pair_merges.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

// The code point that GPT-2 writes a byte with: itself where it is visible, else the next free one from 256 on.
std::array<uint32_t, 256> visible_characters() {
  std::array<uint32_t, 256> codes{};
  uint32_t free = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    codes[byte] = visible ? byte : free++;
  }
  return codes;
}

std::string utf8_of(uint32_t code) {  // below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

// The bytes that a piece of form `bytes` stands for; nothing where it holds a character that stands for none.
std::optional<std::string> bytes_of_visible(std::string_view piece) {
  static const std::map<uint32_t, char> kBytes = [] {
    std::map<uint32_t, char> bytes;
    const std::array<uint32_t, 256> codes = visible_characters();
    for (size_t byte = 0; byte < codes.size(); ++byte) bytes.emplace(codes[byte], static_cast<char>(byte));
    return bytes;
  }();
  std::string result;
  for (size_t at = 0; at < piece.size();) {
    const Character character = character_at(piece, at);
    const auto found = kBytes.find(character.code);
    if (found == kBytes.end()) return {};
    result += found->second;
    at += character.size;
  }
  return result;
}

std::string with_spaces(std::string_view piece) {
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const bool mark = piece.substr(at).starts_with(kSpaceMark);
    text += mark ? ' ' : piece[at];
    at += mark ? kSpaceMark.size() : 1;
  }
  return text;
}

template <size_t kCount>
size_t index_of(JsonFields& fields, std::string_view name, const std::array<std::string_view, kCount>& names) {
  const std::string text = fields.string(name);
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) fields.refuse(name, fmt::format("is unknown, expected one of {}", fmt::join(names, ", ")));
  return static_cast<size_t>(found - names.begin());
}

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(BpeModel model, std::string_view where) : model_(std::move(model)) {
    const size_t count = model_.pieces.size();
    if (count < 1 || count > static_cast<size_t>(kMaxTokens)) {
      refuse(where, "has {} pieces, expected 1 to {}", count, kMaxTokens);
    }
    index_pieces(where);
    index_added(where);
    index_merges(where);
    index_bytes(where);
    for (const int32_t id : {model_.begin, model_.end}) {
      if (id < -1 || id >= static_cast<int32_t>(count)) refuse(where, "has begin or end {}, expected an id or -1", id);
    }
    if (model_.begins_texts && model_.begin < 0) refuse(where, "begins texts with a piece, but has no begin piece");
  }
  BpeTokenizer(const BpeTokenizer&) = delete;  // ids point into pieces
  BpeTokenizer& operator=(const BpeTokenizer&) = delete;

  std::string kind() const override { return "bpe"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(model_.pieces.size()); }
  int32_t begin() const override { return model_.begin; }
  int32_t end() const override { return model_.end; }
  int32_t unknown() const override { return -1; }
  bool begins_texts() const override { return model_.begins_texts; }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), fields().dump()); }
  void save(const std::filesystem::path& directory) const override { save_tokenizer_file(directory, kind(), fields()); }

  std::vector<int32_t> encode(std::string_view text) const override { return encode(text, true); }
  std::vector<int32_t> encode_rest(std::string_view text) const override { return encode(text, false); }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool begun = false;
    for (const int32_t id : ids) {
      require_token(id, vocabulary());
      const std::string_view surface = surfaces_[static_cast<size_t>(id)];
      text += surface.substr(begun && surface.starts_with(' ') ? 1 : 0);
      begun = id == model_.begin && model_.leading_space != LeadingSpace::none;
    }
    return text;
  }

 private:
  std::vector<int32_t> encode(std::string_view text, bool begins) const {
    const bool first = begins && model_.leading_space != LeadingSpace::none;  // whether a space comes before the text
    const bool later = model_.leading_space == LeadingSpace::always;          // before what follows an added piece
    std::vector<int32_t> ids;
    Known known;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const std::optional<int32_t> added = added_at(text, at);
      if (!added) {
        ++at;
        continue;
      }
      encode_part(text.substr(begin, at - begin), begin == 0 ? first : later, known, ids);
      ids.push_back(*added);
      begin = at += model_.pieces[static_cast<size_t>(*added)].size();
    }
    encode_part(text.substr(begin), begin == 0 ? first : later, known, ids);
    return ids;
  }

  // Where the ids of a word that came before begin, and how many they are.
  struct Place {
    size_t begin, count;
  };
  using Known = std::unordered_map<std::string_view, Place>;

  template <typename... Args>
  [[noreturn]] static void refuse(std::string_view where, fmt::format_string<Args...> format, Args&&... args) {
    throw FormatError(fmt::format("{}: {}", where, fmt::format(format, std::forward<Args>(args)...)));
  }

  void index_pieces(std::string_view where) {
    ids_.reserve(model_.pieces.size());
    for (size_t i = 0; i < model_.pieces.size(); ++i) {
      const std::string& piece = model_.pieces[i];
      if (first_byte_not_text(piece)) refuse(where, "piece {} is not text", i);
      surfaces_.push_back(surface_of(piece));
      if (piece.empty()) continue;
      const auto [other, fresh] = ids_.emplace(piece, static_cast<int32_t>(i));
      if (!fresh) refuse(where, "has the same piece at {} and {}", other->second, i);
    }
  }

  std::string surface_of(const std::string& piece) const {
    if (model_.form == BpeForm::bytes) return bytes_of_visible(piece).value_or(piece);
    if (const auto byte = byte_of_piece(piece)) return {static_cast<char>(*byte)};
    return with_spaces(piece);
  }

  void index_added(std::string_view where) {
    for (const int32_t id : model_.added) {
      if (id < 0 || id >= vocabulary() || model_.pieces[static_cast<size_t>(id)].empty()) {
        refuse(where, "adds piece {}, which is not in the vocabulary", id);
      }
      const std::string& piece = model_.pieces[static_cast<size_t>(id)];
      if (!added_.emplace(piece, id).second) refuse(where, "adds piece {} twice", id);
      surfaces_[static_cast<size_t>(id)] = piece;
      std::vector<size_t>& sizes = added_sizes_[static_cast<unsigned char>(piece[0])];
      if (std::ranges::find(sizes, piece.size()) == sizes.end()) sizes.push_back(piece.size());
    }
    for (std::vector<size_t>& sizes : added_sizes_) std::ranges::sort(sizes, std::greater<>());
    for (const int32_t id : model_.special) {
      if (id < 0 || id >= vocabulary() || !added_.contains(model_.pieces[static_cast<size_t>(id)])) {
        refuse(where, "has the special piece {}, which is not an added piece", id);
      }
      surfaces_[static_cast<size_t>(id)].clear();
    }
  }

  void index_merges(std::string_view where) {
    merges_.reserve(model_.merges.size());
    std::string both;
    for (size_t rank = 0; rank < model_.merges.size(); ++rank) {
      const auto [left, right] = model_.merges[rank];
      if (left < 0 || left >= vocabulary() || right < 0 || right >= vocabulary()) {
        refuse(where, "merge {} is of {} and {}, expected ids below {}", rank, left, right, vocabulary());
      }
      both = model_.pieces[static_cast<size_t>(left)];
      both += model_.pieces[static_cast<size_t>(right)];
      const auto merged = ids_.find(both);
      if (merged == ids_.end()) refuse(where, "merge {} of {} and {} does not give a piece of the vocabulary", rank, left, right);
      if (is_fixed(left) || is_fixed(right) || is_fixed(merged->second)) {
        refuse(where, "merge {} of {} and {} uses a byte, an empty or an added piece", rank, left, right);
      }
      const PairMerge merge{static_cast<int64_t>(rank), merged->second};
      if (!merges_.emplace(key_of(left, right), merge).second)
        refuse(where, "merge {} of {} and {} appears twice", rank, left, right);
    }
  }

  // Pieces that do not merge.
  bool is_fixed(int32_t id) const {
    const std::string& piece = model_.pieces[static_cast<size_t>(id)];
    return piece.empty() || added_.contains(piece) || (model_.form == BpeForm::marks && byte_of_piece(piece));
  }

  void index_bytes(std::string_view where) {
    if (model_.form == BpeForm::marks) {
      byte_ids_ = ids_of_bytes(model_.pieces, -1);
    } else {
      const std::array<uint32_t, 256> codes = visible_characters();
      for (size_t byte = 0; byte < codes.size(); ++byte) {
        const auto found = ids_.find(utf8_of(codes[byte]));
        byte_ids_[byte] = found == ids_.end() ? -1 : found->second;
      }
    }
    const auto missing = std::ranges::find(byte_ids_, -1);
    if (missing != byte_ids_.end()) {
      refuse(where, "has no piece for byte 0x{:02X}, expected one for each byte", missing - byte_ids_.begin());
    }
  }

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  // The longest added piece that is written at text[at].
  std::optional<int32_t> added_at(std::string_view text, size_t at) const {
    for (const size_t size : added_sizes_[static_cast<unsigned char>(text[at])]) {
      if (size > text.size() - at) continue;
      if (const auto found = added_.find(text.substr(at, size)); found != added_.end()) return found->second;
    }
    return {};
  }

  // A part of a text without added pieces; `space` puts one before it (form marks).
  void encode_part(std::string_view part, bool space, Known& known, std::vector<int32_t>& ids) const {
    if (part.empty()) return;
    if (model_.form == BpeForm::marks) return encode_marks(part, space, ids);
    for (const std::string_view word : words_of(part, model_.split)) {
      const auto [entry, fresh] = known.try_emplace(word);
      if (fresh) {
        const size_t begin = ids.size();
        encode_word(word, ids);
        entry->second = {begin, ids.size() - begin};
      } else {
        for (size_t i = 0; i < entry->second.count; ++i) ids.push_back(ids[entry->second.begin + i]);
      }
    }
  }

  void encode_word(std::string_view word, std::vector<int32_t>& ids) const {
    std::vector<int32_t> of_word;
    if (model_.whole_words) {
      const auto found = ids_.find(visible(word));
      if (found != ids_.end() && !added_.contains(found->first)) return ids.push_back(found->second);
    }
    for (const char byte : word) of_word.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    merge(of_word);
    ids.insert(ids.end(), of_word.begin(), of_word.end());
  }

  std::string visible(std::string_view word) const {
    std::string piece;
    for (const char byte : word) piece += model_.pieces[static_cast<size_t>(byte_ids_[static_cast<unsigned char>(byte)])];
    return piece;
  }

  void encode_marks(std::string_view part, bool space, std::vector<int32_t>& ids) const {
    std::vector<int32_t> of_part;
    of_part.reserve(part.size() + 1);
    if (space) add_character(kSpaceMark, ids_, byte_ids_, of_part);
    for (size_t at = 0; at < part.size();) {
      const size_t size = character_at(part, at).size;
      const std::string_view character = part.substr(at, size);
      add_character(character == " " ? kSpaceMark : character, ids_, byte_ids_, of_part);
      at += size;
    }
    merge(of_part);
    ids.insert(ids.end(), of_part.begin(), of_part.end());
  }

  void merge(std::vector<int32_t>& ids) const {
    merge_pairs(ids, [this](int32_t left, int32_t right) -> std::optional<PairMerge> {
      const auto found = merges_.find(key_of(left, right));
      if (found == merges_.end()) return {};
      return found->second;
    });
  }

  nlohmann::ordered_json fields() const {
    std::vector<int32_t> merges;
    for (const auto& [left, right] : model_.merges) merges.insert(merges.end(), {left, right});
    return {{"form", kBpeForms[static_cast<size_t>(model_.form)]},
            {"split", kWordSplits[static_cast<size_t>(model_.split)]},
            {"leading_space", kLeadingSpaces[static_cast<size_t>(model_.leading_space)]},
            {"whole_words", model_.whole_words},
            {"begin", model_.begin},
            {"end", model_.end},
            {"begins_texts", model_.begins_texts},
            {"added", model_.added},
            {"special", model_.special},
            {"pieces", model_.pieces},
            {"merges", merges}};
  }

  BpeModel model_;
  std::unordered_map<std::string_view, int32_t> ids_;    // of pieces
  std::unordered_map<std::string_view, int32_t> added_;  // of these: those that are added
  std::array<std::vector<size_t>, 256> added_sizes_;     // by first byte: the sizes of added pieces, longest first
  std::unordered_map<uint64_t, PairMerge> merges_;
  std::array<int32_t, 256> byte_ids_{};
  std::vector<std::string> surfaces_;  // by id: what decode() writes
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeModel model, std::string_view where) {
  return std::make_unique<BpeTokenizer>(std::move(model), where);
}

std::unique_ptr<Tokenizer> bpe_tokenizer_from(JsonFields& fields) {
  BpeModel model;
  model.form = static_cast<BpeForm>(index_of(fields, "form", kBpeForms));
  model.split = static_cast<WordSplit>(index_of(fields, "split", kWordSplits));
  model.leading_space = static_cast<LeadingSpace>(index_of(fields, "leading_space", kLeadingSpaces));
  model.whole_words = fields.truth("whole_words");
  model.begin = static_cast<int32_t>(fields.integer("begin", -1, kMaxTokens));
  model.end = static_cast<int32_t>(fields.integer("end", -1, kMaxTokens));
  model.begins_texts = fields.truth("begins_texts");
  const auto ids = [&fields](std::string_view name) {
    const std::vector<int64_t> numbers = fields.integers(name, 0, kMaxTokens);
    return std::vector<int32_t>(numbers.begin(), numbers.end());
  };
  model.added = ids("added");
  model.special = ids("special");
  model.pieces = fields.strings("pieces");
  const std::vector<int32_t> merges = ids("merges");
  if (merges.size() % 2 != 0) fields.refuse("merges", fmt::format("has {} entries, expected two per merge", merges.size()));
  for (size_t i = 0; i < merges.size(); i += 2) model.merges.emplace_back(merges[i], merges[i + 1]);
  return make_bpe_tokenizer(std::move(model), fields.where());
}

}  // namespace raffia::internal
