// Evaluation metrics. `raffia eval` and the evaluations of a training run call the same functions.
//
// All of these put the model in evaluation mode, compute no gradients, and restore the mode afterwards. They are deterministic.
// Scores are sums, so that parts of a text can be scored on different machines and added.
#ifndef RAFFIA_TORCH_TRAIN_EVALUATE_H_
#define RAFFIA_TORCH_TRAIN_EVALUATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/model_config.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"

namespace raffia::internal::train {

using at::Tensor;

// The size of a text in tokens, and in units that do not depend on the tokenizer.
struct TextFacts {
  int64_t tokens = 0;  // all of the text
  int64_t words = 0;   // separated by white space; a newline is one more (WikiText's <eos>)
  int64_t bytes = 0;
};
TextFacts count_text(std::string_view text, int64_t tokens);

// Negative log-likelihood, in nats.
struct NllScore {
  double nll = 0;      // sum over the tokens that were predicted
  int64_t tokens = 0;  // how many: all but the first token of a text
  NllScore& operator+=(const NllScore& other);

  double per_token() const { return nll / static_cast<double>(tokens); }
  double perplexity() const;  // per token
  // For a score of the whole text: the sum over predicted tokens, divided by the number of words or bytes of the text.
  double word_perplexity(const TextFacts& facts) const;
  double bits_per_byte(const TextFacts& facts) const;
};

using OnProgress = std::function<void(int64_t done, int64_t total)>;  // tokens or sequences

struct LmScoring {
  // Reset: tokens per segment, each read from empty memory. Carried: tokens per call, which changes results only by rounding.
  int64_t segment = 256;
  bool carried = false;  // the memory is carried through the whole text
  int64_t batch = 8;     // reset: segments at once
  // Reset: score only share `rank` of `ranks` of the segments; the sum over all shares is the score of the text.
  int64_t rank = 0, ranks = 1;
  OnProgress progress = {};
};

// Whether the memory of every layer can be carried through a text of any length: it is bounded (not softmax, ra) and decays (not
// ungated rfa), and positions are unlimited (not learned).
bool can_carry(const ModelConfig& config);

// ids: the whole text. Every token but the first is predicted once, the first token of a segment from the last of the one before.
NllScore score_lm(nn::LanguageModelImpl& model, std::span<const int32_t> ids, const LmScoring& scoring = {});

// Sum of the cross entropy of hidden [B, T, E] against targets [B, T] (int64; -100: not counted), with logits computed for `part`
// tokens at a time, so that [B, T, vocabulary] is never in memory at once. No gradients.
NllScore score_hidden(nn::LanguageModelImpl& model, const Tensor& hidden, const Tensor& targets, int64_t part = 1024);

struct Decoding {
  int64_t batch = 32;        // sentences at once, of similar lengths
  double length_ratio = 2;   // maximum length of a translation: this many tokens per source token ...
  int64_t extra_length = 8;  // ... plus this many
  OnProgress progress = {};
};

// The most likely token at each step until Tokenizer::kEnd. Sources and translations without begin and end; in order. Throws
// Error for logits that are not finite, of which none is the most likely.
std::vector<std::vector<int32_t>> translate_greedily(nn::TranslatorImpl& model, std::span<const std::vector<int32_t>> sources,
                                                     const Decoding& decoding = {});

// Scores of classifiers.
struct LabelScore {
  int64_t correct = 0, count = 0;
  double nll = 0;  // sum over examples
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(count); }
  double per_example() const { return nll / static_cast<double>(count); }
  LabelScore& operator+=(const LabelScore& other);
};
LabelScore score_labels(const Tensor& logits, const Tensor& labels);  // [B, classes], [B] int64

// Evaluation mode and no gradients while this object exists.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : model_(model), was_training_(model.is_training()) { model_.eval(); }
  ~EvaluationMode() { model_.train(was_training_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  torch::NoGradGuard no_grad_;
  torch::nn::Module& model_;
  bool was_training_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_EVALUATE_H_
