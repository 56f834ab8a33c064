// Trained models, ready to run: weights, configuration and tokenizer of a model directory (docs/model-format.md). No torch.
//
//   auto model = raffia::Model::load("my-model");
//   raffia::Session session(model);
//   session.prefill(model->tokenizer().encode("Once upon a time"));
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

#include "raffia/model_config.h"
#include "raffia/threads.h"
#include "raffia/tokenizer.h"

namespace raffia {

namespace runtime {
class Graph;
}

// How a model is run. Results do not depend on it, to the bit.
struct RunOptions {
  int threads = 0;               // at most this many; 0: as many as the executor has
  Executor* executor = nullptr;  // default_executor() if null
};

struct LoadOptions {
  // Weights are memory-mapped: processes share them, and pages are read when they are needed. A mapped file may be replaced by
  // renaming another over it, but must not be changed in place: cutting it short kills the process (SIGBUS) when it reads a lost
  // page. false: weights are copied into memory, and the file may change freely.
  bool map = true;

  // A session takes memory that config.json asks for (windows, samples, features), whatever the size of the weights. A model
  // whose sessions would take more than this from the start is refused. 0: 256 MiB, or 8 times the weights if that is more.
  uint64_t max_session_bytes = 0;
};

// Immutable, and shared by all that use it: any number of threads may run sessions over one model.
class Model {
 public:
  // Every tensor is checked by name, shape and type, and all files against the checksums that the writer left, if it left any.
  // Throws IoError or FormatError.
  static std::shared_ptr<const Model> load(const std::filesystem::path& directory, const LoadOptions& options = {});

  // From memory: `safetensors` is the image of a weight file, whose checksums are not looked at. `tokenizer` may be null. `where`
  // names it in messages.
  static std::shared_ptr<const Model> over(const ModelConfig& config, std::vector<std::byte> safetensors,
                                           std::shared_ptr<const Tokenizer> tokenizer, std::string_view where);

  // Throws FormatError where the mapped weight file was changed in place since it was loaded: what was computed since may be
  // wrong. Sessions ask before they are saved. A file that another was renamed over is not changed.
  void require_unchanged() const;

  const std::filesystem::path& directory() const { return directory_; }  // that it was loaded from; empty: from memory
  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;  // throws InvalidArgument where there is none (images)

  // Of configuration, weights and tokenizer: what a saved session must find again.
  uint64_t fingerprint() const;
  size_t weight_bytes() const;           // as stored
  int64_t parameters() const;            // numbers in all tensors, scales of rows left out
  std::string_view weight_type() const;  // "f32", "bf16", "int8", of the linear layers; "mixed"

  const runtime::Graph& graph() const { return *graph_; }  // for the runtime itself

 private:
  Model(std::unique_ptr<const runtime::Graph> graph, std::filesystem::path directory);

  std::unique_ptr<const runtime::Graph> graph_;
  std::filesystem::path directory_;

 public:
  ~Model();
};

// Scores of the classes for a text (classify, without and with pairs) or for an image (image): logits [classes]. Throws Error
// where one is not finite: the weights are damaged, or the pixels are not finite. Empty texts count as one unknown token, and
// padding (Tokenizer::kPad) takes no part, as in training.
std::vector<float> classify(const Model& model, std::span<const int32_t> ids, const RunOptions& options = {});
std::vector<float> classify_pair(const Model& model, std::span<const int32_t> first, std::span<const int32_t> second,
                                 const RunOptions& options = {});
// pixels [channels, size, size], 0..1.
std::vector<float> classify_image(const Model& model, std::span<const float> pixels, const RunOptions& options = {});

struct TranslateOptions {
  static constexpr int64_t kMaxBeam = 1024;
  int64_t beam = 4;             // hypotheses kept, at most kMaxBeam; 1: greedy
  int64_t most_tokens = 0;      // of a translation; 0: twice the source and 16
  double length_penalty = 0.6;  // hypotheses compare by log probability / ((5 + length) / 6)^penalty (Wu et al. 2016)
  RunOptions run = {};
};

struct Translation {
  std::vector<int32_t> ids;    // without begin and end
  double log_probability = 0;  // of the ids and the end
  double score = 0;            // with the length penalty
};

// The best hypotheses, at most `beam`, best first; never none. `source`: ids without begin and end. Throws Error where a logit is
// not finite.
std::vector<Translation> translate(const Model& model, std::span<const int32_t> source, const TranslateOptions& options = {});

// Logits [T, vocabulary] for each token of `target` (with begin) in one pass, as in training.
std::vector<float> translation_logits(const Model& model, std::span<const int32_t> source, std::span<const int32_t> target,
                                      const RunOptions& options = {});

}  // namespace raffia

#endif  // RAFFIA_MODEL_H_
