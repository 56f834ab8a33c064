// Text generation with a language model: a session holds the memory of the text so far and samples the next token.
//
//   raffia::Session session(raffia::Model::load("my-model"), {.sampling = {.temperature = 0.8, .seed = 7}});
//   session.prefill("Once upon a time");
//   std::cout << raffia::generate(session, {.tokens = 100}).text;
//
// With estimators of constant memory (EstimatorTraits::constant_memory) a session has the same size at token 10 and at token 10
// million, in memory and as a file. With window the size is bounded. Softmax and ra keep all keys and values.
//
// After an error other than InvalidArgument (out of memory, for example) a session may only be assigned to or destroyed.
//
// Results are bitwise the same for any number of threads, and whichever sessions are stepped together.
#ifndef RAFFIA_SESSION_H_
#define RAFFIA_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/model.h"

namespace raffia {

class PrefixCache;

namespace internal {
class SessionAccess;
}

// How a token is chosen from logits; the steps are applied in this order. The defaults sample the model's own distribution.
struct RAFFIA_API SamplingOptions {
  static constexpr int64_t kMaxRepetitionWindow = 1 << 16;
  double repetition_penalty = 1;   // > 1: logits of recent tokens are divided by it (multiplied where negative)
  int64_t repetition_window = 64;  // how many tokens are recent, at most kMaxRepetitionWindow
  double temperature = 1;          // logits are divided by it; 0: greedy, the most likely token (lowest id among equals)
  int64_t top_k = 0;               // only the k most likely tokens; 0: all
  double top_p = 1;                // only the most likely tokens, as few as have a total probability of at least p
  double min_p = 0;                // only tokens at least min_p times as likely as the most likely one
  uint64_t seed = 0;               // draw n of a session depends only on the seed and n
  bool operator==(const SamplingOptions&) const = default;

  void check(std::string_view where) const;  // throws InvalidArgument, which names the field
};

struct SessionOptions {
  SamplingOptions sampling = {};
  RunOptions run = {};
  // Rollback: a snapshot is taken every `snapshot_every` tokens, and the last `snapshots` are kept. 0: no rollback.
  int64_t snapshot_every = 0;
  int64_t snapshots = 8;
};

struct TokenScore {
  int32_t id = 0;
  double log_probability = 0;
};

class RAFFIA_API Session {
 public:
  // Prompts are read in chunks that end at multiples of this. PrefixCache keeps snapshots at these positions.
  static constexpr int64_t kChunk = 256;

  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  Session(const Session& other);  // a fork: it continues exactly as the original would, and the two are independent
  Session& operator=(const Session& other);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  const Model& model() const;
  int64_t position() const;  // number of tokens read
  int64_t room() const;      // number of tokens that it can still read; limited only for models with learned positions
  const RunOptions& run() const;
  size_t state_bytes() const;  // size of the memory of the text

  // Reads text. At position 0 a text begins: with the begin token if the model has learned that, and with the space that some
  // imported vocabularies put before a text; an empty text is read as the begin token or as the end of a line. Later, text
  // continues what was read, without any of this. No token spans two calls. Otherwise like the call for ids, which follows.
  int64_t prefill(std::string_view text, PrefixCache* cache = nullptr);
  // Reads tokens; logits() are then those after the last one. With a cache, returns how many tokens were found there, and adds
  // snapshots of the others to it. Ids are checked before anything changes.
  int64_t prefill(std::span<const int32_t> ids, PrefixCache* cache = nullptr);
  // The same, and passes the logits [vocabulary] after each token to `on_logits`.
  void prefill(std::span<const int32_t> ids, const std::function<void(int64_t index, std::span<const float> logits)>& on_logits);

  void step(int32_t id);
  // One token for each of several distinct sessions of one model, in one pass over its weights.
  static void step(std::span<Session* const> sessions, std::span<const int32_t> ids, const RunOptions& options = {});

  std::span<const float> logits() const;                   // [vocabulary], of the next token; empty before the first token
  int32_t sample();                                        // chooses the next token, but does not read it
  double log_probability(int32_t id) const;                // of the next token, by the model: without sampling options
  std::vector<TokenScore> likeliest(int64_t count) const;  // the most likely next tokens, best first

  std::span<const int32_t> recent() const;  // the last tokens read, at most 64 or the repetition window, if that is larger

  const SamplingOptions& sampling() const;
  void set_sampling(const SamplingOptions& sampling);  // the count of draws continues unless the seed changes

  // Goes back, as if the last `tokens` tokens had not been read: what follows is bitwise the same. Throws InvalidArgument if no
  // snapshot is old enough.
  void rollback(int64_t tokens);
  int64_t rollback_limit() const;  // maximum for rollback() now

  // A file of constant size, from which any process with the same model continues with bitwise the same results
  // (docs/state-format.md). Throws InvalidArgument if it would replace a file of a model, and FormatError if the mapped weights
  // were changed in place.
  void save(const std::filesystem::path& path) const;
  std::vector<std::byte> to_bytes() const;
  // Throws FormatError if the bytes are damaged, and InvalidArgument if they belong to another model. The sampling options are
  // those that were saved; all others are taken from `options`.
  static Session restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const SessionOptions& options = {});
  static Session from_bytes(std::shared_ptr<const Model> model, std::span<const std::byte> bytes, const SessionOptions& options,
                            std::string_view where);

 private:
  friend class internal::SessionAccess;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What can be read from a session file without the model.
struct SessionFileInfo {
  uint64_t fingerprint = 0;  // of the model
  int64_t position = 0;
  uint64_t draws = 0;  // number of draws made by sample()
  SamplingOptions sampling = {};
  int64_t vocabulary = 0;
  std::vector<std::string> memories;  // per attention: "state, 8 heads x 128 features x 65: 266304 bytes"
  uint64_t bytes = 0;                 // size of the file
};
RAFFIA_API SessionFileInfo read_session_info(const std::filesystem::path& path);

// Lets sessions skip prompt prefixes that were read before: a trie of tokens with snapshots at chunk boundaries. The least
// recently used snapshots are dropped first. Thread-safe.
class RAFFIA_API PrefixCache {
 public:
  struct Options {
    size_t max_bytes = size_t{256} << 20;
    int64_t every = 4 * Session::kChunk;  // tokens between snapshots of a long prompt; the last chunk boundary always has one
  };
  struct Counts {
    int64_t lookups = 0, hits = 0;         // prompts looked up, and those with a prefix in the cache
    int64_t tokens = 0, tokens_known = 0;  // tokens looked up, and those found
    int64_t snapshots = 0;
    size_t bytes = 0;  // of the snapshots and the tokens before them
  };

  explicit PrefixCache(std::shared_ptr<const Model> model, const Options& options);
  ~PrefixCache();
  Counts counts() const;
  void clear();

 private:
  friend class Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct GenerateOptions {
  int64_t tokens = 256;                // maximum number of new tokens
  std::vector<std::string> stop = {};  // the text ends before the first of these
  bool ends = true;                    // stop at the tokenizer's end token
};

struct Generated {
  enum class Reason : uint8_t { length, stop, end, room };  // room: all learned positions of the model are used
  std::string text;                                         // up to the stop string
  std::vector<int32_t> ids;                                 // the tokens chosen, which the session has read
  std::vector<double> log_probabilities;                    // one per token
  Reason reason = Reason::length;
};

// Samples and reads tokens until a Reason to stop. `on_text` is called after each token with the new text: whole UTF-8 characters
// and no part of a stop string, so it may be empty. It returns false to stop early (Reason::stop). The session must have read at
// least one token.
RAFFIA_API Generated generate(Session& session, const GenerateOptions& options,
                              const std::function<bool(std::string_view text)>& on_text = {});

}  // namespace raffia

#endif  // RAFFIA_SESSION_H_
