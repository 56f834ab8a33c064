#include "io/tokenizers/tokenizer_scored.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "io/formats/elements.h"
#include "io/formats/text.h"
#include "io/tokenizers/byte_pieces.h"
#include "io/tokenizers/pair_merges.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr int32_t kUnknownPiece = 0, kBeginPiece = 1, kEndPiece = 2, kFirstPiece = 3;
constexpr int32_t kLongestPiece = 1 << 16;

// 0 for the highest score, the same for equal ones.
std::vector<int64_t> ranks_of(const std::vector<float>& scores) {
  std::vector<float> ranked = scores;
  std::ranges::sort(ranked, std::greater<>());
  ranked.erase(std::unique(ranked.begin(), ranked.end()), ranked.end());
  std::vector<int64_t> ranks;
  for (const float score : scores) ranks.push_back(std::ranges::lower_bound(ranked, score, std::greater<>()) - ranked.begin());
  return ranks;
}

class ScoredTokenizer : public Tokenizer {
 public:
  explicit ScoredTokenizer(ScoredPieces scored)
      : pieces_(std::move(scored.pieces)),
        scores_(std::move(scored.scores)),
        ranks_(ranks_of(scores_)),
        byte_ids_(ids_of_bytes(pieces_, kUnknownPiece)) {
    require(pieces_.size() >= kFirstPiece && pieces_.size() == scores_.size(),
            "ScoredTokenizer: {} pieces and {} scores, expected the same number, at least {}", pieces_.size(), scores_.size(),
            kFirstPiece);
    // Special ids and bytes are never found in text.
    for (size_t i = kFirstPiece; i < pieces_.size(); ++i) {
      if (!pieces_[i].empty() && !byte_of_piece(pieces_[i])) ids_.emplace(pieces_[i], static_cast<int32_t>(i));
    }
  }
  ScoredTokenizer(const ScoredTokenizer&) = delete;  // ids_ points into pieces_
  ScoredTokenizer& operator=(const ScoredTokenizer&) = delete;

  std::string kind() const override { return "scored"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(pieces_.size()); }
  int32_t begin() const override { return kBeginPiece; }
  int32_t end() const override { return kEndPiece; }
  int32_t unknown() const override { return kUnknownPiece; }
  bool begins_texts() const override { return true; }
  uint64_t fingerprint() const override { return tokenizer_fingerprint(kind(), fields().dump()); }
  void save(const std::filesystem::path& directory) const override { save_tokenizer_file(directory, kind(), fields()); }

  std::vector<int32_t> encode(std::string_view text) const override { return encode(text, true); }
  std::vector<int32_t> encode_rest(std::string_view text) const override { return encode(text, false); }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    bool begun = false;
    for (const int32_t id : ids) {
      require_token(id, vocabulary());
      if (id >= kFirstPiece) {
        const std::string& piece = pieces_[static_cast<size_t>(id)];
        if (const auto byte = byte_of_piece(piece)) {
          if (!begun || *byte != ' ') text += static_cast<char>(*byte);
        } else {
          text += std::string_view(piece).substr(begun && piece.starts_with(' ') ? 1 : 0);
        }
      }
      begun = id == kBeginPiece;
    }
    return text;
  }

 private:
  std::vector<int32_t> encode(std::string_view text, bool begins) const {
    if (text.empty()) return {};
    std::vector<int32_t> ids;
    ids.reserve(text.size() + 1);
    if (begins) add_character(" ", ids_, byte_ids_, ids);
    for (size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      add_character(text.substr(at, character.size), ids_, byte_ids_, ids);
      at += character.size;
    }
    std::string both;
    merge_pairs(ids, [&](int32_t left, int32_t right) -> std::optional<PairMerge> {
      if (!is_text(left) || !is_text(right)) return {};
      both = pieces_[static_cast<size_t>(left)];
      both += pieces_[static_cast<size_t>(right)];
      const auto found = ids_.find(both);
      if (found == ids_.end()) return {};
      return PairMerge{ranks_[static_cast<size_t>(found->second)], found->second};
    });
    return ids;
  }

  bool is_text(int32_t id) const { return id >= kFirstPiece && !byte_of_piece(pieces_[static_cast<size_t>(id)]); }

  nlohmann::ordered_json fields() const { return {{"pieces", pieces_}, {"scores", scores_}}; }

  std::vector<std::string> pieces_;
  std::vector<float> scores_;
  std::vector<int64_t> ranks_;
  std::array<int32_t, 256> byte_ids_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of pieces that text is made of
};

}  // namespace

ScoredPieces parse_scored_pieces(std::span<const std::byte> bytes, std::string_view where) {
  const auto refuse = [where](const std::string& what) { throw FormatError(fmt::format("{}: {}", where, what)); };
  constexpr size_t kWord = sizeof(int32_t);
  if (bytes.size() < kWord) refuse(fmt::format("{} bytes, expected at least {}: truncated", bytes.size(), kWord));
  const auto longest = std::bit_cast<int32_t>(little_endian<uint32_t>(bytes));
  if (longest < 1 || longest > kLongestPiece) {
    refuse(fmt::format("its longest piece has {} bytes, expected 1 to {}: not a file of scored pieces", longest, kLongestPiece));
  }
  ScoredPieces result;
  for (size_t at = kWord; at < bytes.size();) {
    const size_t id = result.pieces.size();
    if (id == static_cast<size_t>(kMaxTokens)) refuse(fmt::format("more than {} pieces", kMaxTokens));
    if (bytes.size() - at < 2 * kWord) refuse(fmt::format("ends within piece {} (byte {}): truncated", id, at));
    const auto score = std::bit_cast<float>(little_endian<uint32_t>(bytes, at));
    const auto size = std::bit_cast<int32_t>(little_endian<uint32_t>(bytes, at + kWord));
    at += 2 * kWord;
    if (!std::isfinite(score)) refuse(fmt::format("piece {} has score {}, expected a finite number", id, score));
    if (size < 0 || size > longest) {
      refuse(fmt::format("piece {} has {} bytes, expected 0 to {} (the longest piece)", id, size, longest));
    }
    if (bytes.size() - at < static_cast<size_t>(size)) refuse(fmt::format("ends within piece {} (byte {}): truncated", id, at));
    std::string piece(reinterpret_cast<const char*>(bytes.data()) + at, static_cast<size_t>(size));
    if (const auto bad = first_byte_not_text(piece)) refuse(fmt::format("piece {} is not UTF-8 text at its byte {}", id, *bad));
    result.pieces.push_back(std::move(piece));
    result.scores.push_back(score);
    at += static_cast<size_t>(size);
  }
  if (result.pieces.size() < kFirstPiece) {
    refuse(fmt::format("{} pieces, expected at least {}: unknown, begin, end", result.pieces.size(), kFirstPiece));
  }
  return result;
}

std::unique_ptr<Tokenizer> make_scored_tokenizer(ScoredPieces pieces) {
  return std::make_unique<ScoredTokenizer>(std::move(pieces));
}

std::unique_ptr<Tokenizer> scored_tokenizer_from(JsonFields& fields) {
  ScoredPieces scored = {.pieces = fields.strings("pieces"), .scores = {}};
  for (const double score : fields.numbers("scores")) {
    if (std::abs(score) > std::numeric_limits<float>::max())
      fields.refuse("scores", fmt::format("holds {}, expected floats", score));
    scored.scores.push_back(static_cast<float>(score));
  }
  const size_t count = scored.pieces.size();
  if (count < kFirstPiece || count > static_cast<size_t>(kMaxTokens)) {
    fields.refuse("pieces", fmt::format("has {} entries, expected {} to {}", count, kFirstPiece, kMaxTokens));
  }
  if (scored.scores.size() != count) {
    fields.refuse("scores", fmt::format("has {} entries, expected {} (one per piece)", scored.scores.size(), count));
  }
  for (size_t i = 0; i < count; ++i) {
    if (first_byte_not_text(scored.pieces[i])) fields.refuse("pieces", fmt::format("is not text at index {}", i));
  }
  return make_scored_tokenizer(std::move(scored));
}

}  // namespace raffia::internal
