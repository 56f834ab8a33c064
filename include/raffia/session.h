// A text in the making: what a language model remembers of it, and the choice of what comes next.
//
// With estimators of constant memory (rfa, rfa_gate, hybrid, lara, eva) a session has the same size at token 10 and at token 10
// million, in memory and as a file; with window it is bounded. Softmax and ra keep all keys and values.
//
// After an error other than InvalidArgument (out of memory, say) a session is good for nothing but to be assigned to.
//
// Results have the same bits whatever sessions are stepped together, and for any number of threads.
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

#include "raffia/model.h"

namespace raffia {

class Session;
class PrefixCache;
struct SessionOptions;

namespace runtime {
Session session_at_depth(std::shared_ptr<const Model> model, int64_t depth, const SessionOptions& options);
}

// From logits to a token, in this order. The defaults draw from the model's own distribution.
struct SamplingOptions {
  static constexpr int64_t kMaxRepetitionWindow = 1 << 16;
  double repetition_penalty = 1;   // > 1: logits of recent tokens are divided by it (multiplied where negative)
  int64_t repetition_window = 64;  // how many tokens are recent, at most kMaxRepetitionWindow
  double temperature = 1;          // logits are divided by it; 0: greedy, the likeliest token (the lowest id of equals)
  int64_t top_k = 0;               // the k likeliest alone; 0: all
  double top_p = 1;                // the fewest tokens whose probabilities sum to p
  double min_p = 0;                // tokens at least min_p times as likely as the likeliest
  uint64_t seed = 0;               // draw n of a session depends on the seed and n alone
  bool operator==(const SamplingOptions&) const = default;

  void check(std::string_view where) const;  // throws InvalidArgument that names the field
};

struct SessionOptions {
  SamplingOptions sampling = {};
  RunOptions run = {};
  // Rollback: a snapshot is taken every so many tokens, and the last `snapshots` are kept. 0: none, and no rollback.
  int64_t snapshot_every = 0;
  int64_t snapshots = 8;
};

struct TokenScore {
  int32_t id = 0;
  double log_probability = 0;
};

class Session {
 public:
  // Prompts are read in chunks that end at multiples of this: where snapshots of prefixes lie.
  static constexpr int64_t kChunk = 256;

  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  Session(const Session& other);  // a fork: continues as the original would, and neither sees the other
  Session& operator=(const Session& other);
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;
  ~Session();

  const Model& model() const;
  int64_t position() const;  // tokens read
  int64_t room() const;      // tokens that it can still read: learned positions end, others never
  const RunOptions& run() const;
  size_t state_bytes() const;  // of what it remembers

  // Reads tokens; logits() are those after the last. Returns how many were found in the cache, if one is given, and leaves what
  // it learned there. Ids are checked before anything changes.
  int64_t prefill(std::span<const int32_t> ids, PrefixCache* cache = nullptr);
  // The same, and tells the logits [vocabulary] after each token.
  void prefill(std::span<const int32_t> ids, const std::function<void(int64_t index, std::span<const float> logits)>& on_logits);

  void step(int32_t id);
  // One token for each of several distinct sessions over one model, in one pass over its weights.
  static void step(std::span<Session* const> sessions, std::span<const int32_t> ids, const RunOptions& options = {});

  std::span<const float> logits() const;                   // [vocabulary], of what comes next; empty before the first token
  int32_t sample();                                        // a choice of what comes next; does not read it
  double log_probability(int32_t id) const;                // by the model itself, before sampling changes it
  std::vector<TokenScore> likeliest(int64_t count) const;  // best first

  std::span<const int32_t> recent() const;  // the last tokens read, at most 64 or the repetition window

  const SamplingOptions& sampling() const;
  void set_sampling(const SamplingOptions& sampling);  // the count of draws goes on unless the seed changes

  // Forgets the last `tokens` tokens. Throws InvalidArgument where no snapshot reaches back so far. What follows is bit by bit
  // what would have followed then.
  void rollback(int64_t tokens);
  int64_t rollback_limit() const;  // tokens that can be forgotten now

  // A file of constant size that any process with the same model continues from, bit by bit (docs/state-format.md). Throws
  // InvalidArgument where it would replace a file of the model, and FormatError where the mapped weights were changed in place.
  void save(const std::filesystem::path& path) const;
  std::vector<std::byte> to_bytes() const;
  // Throws FormatError where the bytes are damaged, and InvalidArgument where they belong to another model. Sampling is the saved
  // one; `options` say how to run.
  static Session restore(std::shared_ptr<const Model> model, const std::filesystem::path& path,
                         const SessionOptions& options = {});
  static Session from_bytes(std::shared_ptr<const Model> model, std::span<const std::byte> bytes, const SessionOptions& options,
                            std::string_view where);

 private:
  friend Session runtime::session_at_depth(std::shared_ptr<const Model> model, int64_t depth, const SessionOptions& options);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What a state file says of itself, without a model.
struct SessionFileInfo {
  uint64_t fingerprint = 0;  // of the model
  int64_t position = 0;
  uint64_t draws = 0;  // made by sample()
  SamplingOptions sampling = {};
  int64_t vocabulary = 0;
  std::vector<std::string> memories;  // per attention: "state, 8 heads x 128 features x 65: 266304 bytes"
  uint64_t bytes = 0;                 // of the file
};
SessionFileInfo read_session_info(const std::filesystem::path& path);

// Prompts that were read before cost nothing: snapshots at chunk boundaries, found by the tokens before them. The least recently
// used go first. Safe to share between threads.
class PrefixCache {
 public:
  struct Options {
    size_t most_bytes = size_t{256} << 20;
    int64_t every = 4 * Session::kChunk;  // tokens between snapshots of a long prompt; the last boundary is always kept
  };
  struct Counts {
    int64_t lookups = 0, hits = 0;         // prompts; of these, with some prefix known
    int64_t tokens = 0, tokens_known = 0;  // asked for; found
    int64_t snapshots = 0;
    size_t bytes = 0;  // of snapshots, and of the tokens that lead to them
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
  int64_t tokens = 256;                // at most
  std::vector<std::string> stop = {};  // text ends before the first of these
  bool ends = true;                    // stops at the tokenizer's end token
};

struct Generated {
  enum class Reason : uint8_t { length, stop, end, room };  // room: the model's learned positions have no more
  std::string text;                                         // up to the stop string
  std::vector<int32_t> ids;                                 // what was chosen, and read by the session
  std::vector<double> log_probabilities;                    // of each
  Reason reason = Reason::length;
};

// Samples and reads tokens until one of the ends. `on_text` is called after each token with the text that is new, whole UTF-8
// characters at a time and never a part of a stop string, so at times with none; it returns false to end early (Reason::stop).
// The session has read at least one token.
Generated generate(Session& session, const GenerateOptions& options,
                   const std::function<bool(std::string_view text)>& on_text = {});

}  // namespace raffia

#endif  // RAFFIA_SESSION_H_
