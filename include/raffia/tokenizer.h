// Text to token ids and back: bytes, characters, words and SentencePiece; for imported models also byte pair encoding and the
// scored pieces of llama2.c. Stored in tokenizer.json of the model directory.
#ifndef RAFFIA_TOKENIZER_H_
#define RAFFIA_TOKENIZER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

// A parsed specification: "byte", "char", "word", "word:20000" or "sp:4000" (SentencePiece BPE).
struct TokenizerSpec {
  std::string kind = "byte";
  int64_t size = 0;  // word: maximum number of words; sp: number of pieces; 0: default of the kind
};
RAFFIA_API TokenizerSpec parse_tokenizer_spec(std::string_view text);  // throws InvalidArgument

// Immutable, so safe to use from several threads. Ids 0, 1, 2 and 3 are pad, unknown, begin and end in every kind that is trained
// here; imported vocabularies have their own ids.
class RAFFIA_API Tokenizer {
 public:
  static constexpr int32_t kPad = 0, kUnknown = 1, kBegin = 2, kEnd = 3;

  virtual ~Tokenizer() = default;
  virtual std::string kind() const = 0;    // "byte", "char", "word", "sp"; imported: "bpe", "scored"
  virtual int64_t vocabulary() const = 0;  // number of ids
  // Some imported vocabularies put a space before a text. decode() removes it directly after begin() and nowhere else, so that
  // decoding ids in parts gives the same text as decoding them together.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;  // without begin and end
  // For a text that continues another: without that space.
  virtual std::vector<int32_t> encode_rest(std::string_view text) const { return encode(text); }
  virtual std::string decode(std::span<const int32_t> ids) const = 0;   // skips special ids; throws for ids out of range
  virtual void save(const std::filesystem::path& directory) const = 0;  // atomic

  virtual int32_t begin() const { return kBegin; }      // -1: there is none
  virtual int32_t end() const { return kEnd; }          // -1: there is none
  virtual int32_t unknown() const { return kUnknown; }  // for text that is not in the vocabulary; -1: there is none
  virtual bool begins_texts() const { return false; }   // language models were trained with begin() before each text

  // A hash of everything that determines the meaning of ids. Sessions and checkpoints require the same tokenizer.
  virtual uint64_t fingerprint() const = 0;
};

// Trains a tokenizer on texts in memory. Throws InvalidArgument for empty or invalid text (invalid UTF-8, zero bytes; the byte
// tokenizer accepts any bytes).
RAFFIA_API std::unique_ptr<Tokenizer> train_tokenizer(const TokenizerSpec& spec, std::span<const std::string_view> texts);

RAFFIA_API std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory);  // throws IoError, FormatError

// The same from the contents of tokenizer.json; a SentencePiece model is read from `directory`.
RAFFIA_API std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::filesystem::path& directory);

}  // namespace raffia

#endif  // RAFFIA_TOKENIZER_H_
