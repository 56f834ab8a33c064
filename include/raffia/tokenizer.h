// Text to token ids and back: bytes, characters, words, SentencePiece; byte pair encoding and scored pieces of models from
// elsewhere. One file in the model directory says which, and holds it.
#ifndef RAFFIA_TOKENIZER_H_
#define RAFFIA_TOKENIZER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace raffia {

// What "byte", "char", "word", "word:20000" and "sp:4000" (SentencePiece BPE pieces) mean.
struct TokenizerSpec {
  std::string kind = "byte";
  int64_t size = 0;  // word: at most this many words; sp: pieces; 0: the kind's default
};
TokenizerSpec parse_tokenizer_spec(std::string_view text);  // throws InvalidArgument

// A value without moving parts: safe to use from several threads. Ids 0, 1, 2 and 3 are pad, unknown, begin and end in every
// kind that is learned here; vocabularies from elsewhere have ids of their own.
class Tokenizer {
 public:
  static constexpr int32_t kPad = 0, kUnknown = 1, kBegin = 2, kEnd = 3;

  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;    // "byte", "char", "word", "sp"; imported: "bpe", "scored"
  virtual int64_t vocabulary() const = 0;  // ids are below this
  // Some imported vocabularies put a space before a text. decode() takes it away right after begin(), and nowhere else, so that
  // the text of ids side by side is their texts side by side.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;  // no begin, no end
  // A text that goes on from another: without that space.
  virtual std::vector<int32_t> encode_rest(std::string_view text) const { return encode(text); }
  virtual std::string decode(std::span<const int32_t> ids) const = 0;   // special ids leave no trace; throws for others
  virtual void save(const std::filesystem::path& directory) const = 0;  // atomic

  virtual int32_t begin() const { return kBegin; }      // -1: there is none
  virtual int32_t end() const { return kEnd; }          // likewise
  virtual int32_t unknown() const { return kUnknown; }  // of what the vocabulary does not know; likewise
  virtual bool begins_texts() const { return false; }   // language models over this vocabulary saw begin() before each text

  // Of all that decides what ids mean: a state or checkpoint refuses another tokenizer.
  virtual uint64_t fingerprint() const = 0;
};

// Learns from text in memory. Throws InvalidArgument for text that is empty, or is not text (invalid UTF-8, zero bytes; the byte
// tokenizer takes any bytes).
std::unique_ptr<Tokenizer> train_tokenizer(const TokenizerSpec& spec, std::span<const std::string_view> texts);

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);  // throws IoError, FormatError

// The same over the text of tokenizer.json; a SentencePiece model is read from `directory`.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::filesystem::path& directory);

}  // namespace raffia

#endif  // RAFFIA_TOKENIZER_H_
