// Inference with trained models: weights, configuration and tokenizer of a model directory (docs/model-format.md). No LibTorch.
//
//   auto model = raffia::Model::load("my-model");
//   raffia::Session session(model);
//   session.prefill("Once upon a time");
//   for (int i = 0; i < 100; ++i) session.step(session.sample());
#ifndef RAFFIA_MODEL_H_
#define RAFFIA_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/model_config.h"
#include "raffia/threads.h"
#include "raffia/tokenizer.h"

namespace raffia {

namespace internal {
class ModelAccess;
}

struct LoadOptions {
  // Weights are memory-mapped: processes share them, and pages are read when they are needed. A mapped file may be replaced by
  // renaming another over it, but must not be changed in place: truncating it kills the process (SIGBUS) when it reads a missing
  // page. false: weights are copied into memory, and the file may change freely.
  bool map = true;

  // The memory of a session depends on config.json (windows, samples, features), not on the size of the weights. Loading fails if
  // a new session would need more than this. 0: 256 MiB, or 8 times the weights if that is more.
  uint64_t max_session_bytes = 0;
};

// Immutable and shared: any number of threads may run sessions of one model at the same time.
class RAFFIA_API Model {
 public:
  ~Model();

  // The name, shape and type of every tensor are checked, and all files are compared with the checksums in the weight file, if it
  // has any. Throws IoError or FormatError.
  static std::shared_ptr<const Model> load(const std::filesystem::path& directory, const LoadOptions& options = {});

  // From memory: `safetensors` holds the bytes of a weight file; its checksums are not verified. `tokenizer` may be null. `where`
  // is the name of the model in error messages.
  static std::shared_ptr<const Model> over(const ModelConfig& config, std::vector<std::byte> safetensors,
                                           std::shared_ptr<const Tokenizer> tokenizer, std::string_view where);

  // Throws FormatError if the mapped weight file was changed in place since it was loaded: later results may be wrong. Called
  // before a session is saved. A file that was replaced by renaming does not count as changed.
  void require_unchanged() const;

  const std::filesystem::path& directory() const { return directory_; }  // the directory it was loaded from; empty: from memory
  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;  // throws InvalidArgument if there is none (images)

  // A hash of configuration, weights and tokenizer. Saved sessions can only be restored with the same fingerprint.
  uint64_t fingerprint() const;
  size_t weight_bytes() const;           // as stored
  int64_t parameters() const;            // number of weights, without the scales of int8 and int4
  std::string_view weight_type() const;  // "f32", "bf16", "int8", "int4" (its embeddings and output may be int8) or "mixed"

 private:
  friend class internal::ModelAccess;
  struct Impl;
  Model(std::unique_ptr<const Impl> impl, std::filesystem::path directory);

  std::unique_ptr<const Impl> impl_;
  std::filesystem::path directory_;
};

// The logits [classes] of a text or a pair of texts (task classify) or of an image (task image). Throws Error if one is not
// finite: the weights are damaged, or the pixels are not finite. An empty text is read as one unknown token, and padding
// (Tokenizer::kPad) is ignored, as in training.
RAFFIA_API std::vector<float> classify(const Model& model, std::span<const int32_t> ids, const RunOptions& options = {});
RAFFIA_API std::vector<float> classify_pair(const Model& model, std::span<const int32_t> first, std::span<const int32_t> second,
                                            const RunOptions& options = {});
// pixels [channels, size, size], from 0 to 1.
RAFFIA_API std::vector<float> classify_image(const Model& model, std::span<const float> pixels, const RunOptions& options = {});

struct TranslateOptions {
  static constexpr int64_t kMaxBeam = 1024;
  int64_t beam = 4;             // number of hypotheses, at most kMaxBeam; 1: greedy
  int64_t max_tokens = 0;       // maximum length of a translation; 0: twice the length of the source, plus 16
  double length_penalty = 0.6;  // hypotheses are ranked by log probability / ((5 + length) / 6)^penalty (Wu et al. 2016)
  RunOptions run = {};
};

struct Translation {
  std::vector<int32_t> ids;    // without begin and end
  double log_probability = 0;  // of the ids and the end
  double score = 0;            // with the length penalty
};

// From 1 to `beam` hypotheses, best first. `source`: ids without begin and end. Throws Error if a logit is not
// finite.
RAFFIA_API std::vector<Translation> translate(const Model& model, std::span<const int32_t> source,
                                              const TranslateOptions& options = {});

// Logits [T, vocabulary] after each token of `target` (with begin), computed in one pass as in training.
RAFFIA_API std::vector<float> translation_logits(const Model& model, std::span<const int32_t> source,
                                                 std::span<const int32_t> target, const RunOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_MODEL_H_
