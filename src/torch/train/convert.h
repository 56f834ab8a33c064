// Replaces the attention of a softmax language model: swap, then finetune (T2R).
//
// All weights are copied. The new parameters (sigma or weights of the map, gates, the scale of hybrid's folded part) are fitted
// layer by layer, so that attention outputs match those of the softmax attention on the same inputs: those of the source model
// on a text.
#ifndef RAFFIA_TORCH_TRAIN_CONVERT_H_
#define RAFFIA_TORCH_TRAIN_CONVERT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "raffia/model_config.h"
#include "torch/nn/models.h"

namespace raffia::internal::train {

// The config of the converted model. `estimators`: one for all layers, or one per layer; softmax layers are not changed. Throws
// InvalidArgument for models that are not language models with softmax attention, or if nothing would change.
ModelConfig converted_config(const ModelConfig& source, const std::vector<Estimator>& estimators, uint64_t seed);

// A model with this config and all weights of `source`.
std::shared_ptr<nn::LanguageModelImpl> make_converted(const nn::LanguageModelImpl& source, const ModelConfig& config);

struct FitOptions {
  int64_t segment = 256;  // tokens per segment, each read from empty memory
  int64_t segments = 16;  // of the text, evenly spread
  int64_t steps = 200;    // of Adam after the search; 0: only the search
  int64_t batch = 4;      // segments per step
  double lr = 0.02;       // initial learning rate; decreases to 0
  std::function<void(int64_t layer, int64_t layers)> progress = {};
};

// Mean square of the difference of attention outputs, relative to the mean square of the outputs: 0 is exact, 1 is as bad as an
// output of zero.
struct LayerFit {
  int64_t layer = 0;
  Estimator estimator = {};
  double error_at_first = 0;  // with sigma 1 and default gates
  double error_searched = 0;  // after the search over scales of sigma, spans of gates, scales of the folded part
  double error = 0;           // after the steps
  double sigma = 0;           // mean; 0 without random map
};

// One entry per converted layer. `ids`: a text, at least one segment long (throws InvalidArgument).
std::vector<LayerFit> fit_attention(nn::LanguageModelImpl& source, nn::LanguageModelImpl& converted, std::span<const int32_t> ids,
                                    const FitOptions& options = {});

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_CONVERT_H_
