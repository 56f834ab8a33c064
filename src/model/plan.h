// One description of a model: what a configuration means as layers and tensors. Everything that builds, reads or writes a model
// goes by it: the runtime, the torch modules, training, import, convert and quantize. docs/model-format.md says it in words.
#ifndef RAFFIA_MODEL_PLAN_H_
#define RAFFIA_MODEL_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sibling_api.h"
#include "io/formats/safetensors.h"
#include "io/formats/weight_file.h"
#include "raffia/estimator.h"
#include "raffia/features.h"
#include "raffia/model_config.h"

namespace raffia::internal {

enum class TensorRole : uint8_t {
  matrix,      // of a linear layer: may be stored in fewer bytes
  vocabulary,  // the same with a row per token: embeddings, output. All others are fp32
  factor,      // what something is multiplied by: norms
  offset,      // what is added: biases, learned positions; log_scale
  taps,        // of a short convolution
  features,    // random vectors of a map that are trained
  draws,       // .. and those that are not
  sigma,       // their scale
};

struct TensorPlan {
  std::string name = {};  // in the weight file
  std::vector<int64_t> shape = {};
  TensorRole role = TensorRole::offset;
  bool operator==(const TensorPlan&) const = default;

  bool is_matrix() const { return role == TensorRole::matrix || is_vocabulary(); }
  bool is_vocabulary() const { return role == TensorRole::vocabulary; }
  bool is_trained() const { return role != TensorRole::draws; }
  int64_t count() const;  // of elements
};

// The last part of a dotted name: how a module is called in the one that owns it.
RAFFIA_SIBLING_API std::string own_name(std::string_view name);

struct LinearLayerPlan {
  std::string name = {};
  TensorPlan weight = {};               // [out, in]
  std::optional<TensorPlan> bias = {};  // [out]

  int64_t out() const { return weight.shape[0]; }
  int64_t in() const { return weight.shape[1]; }
};

// Rows that are looked up: embeddings and learned positions.
struct TablePlan {
  std::string name = {};
  TensorPlan weight = {};  // [rows, E]

  int64_t rows() const { return weight.shape[0]; }
  int64_t width() const { return weight.shape[1]; }
};

struct NormPlan {
  std::string name = {};
  TensorPlan weight = {};               // [E]
  std::optional<TensorPlan> bias = {};  // absent: RMS norm
  double eps = 0;
};

struct MapPlan {
  std::string name = {};
  MapKind kind = MapKind::trig;
  std::optional<TensorPlan> draws = {}, sigma = {};  // random maps: [G, D, d], [G, d]; no sigma: 1
  std::optional<TensorPlan> weight = {}, bias = {};  // relu: [G, D, d], [G, D]
};

// What one attention is made of: E wide, with H heads of d, and G key heads.
struct AttentionSettings {
  int64_t width = 0, heads = 1, key_heads = 1;
  Estimator estimator = {};  // its seed and `layer`, the number of the attention in the model, select the random stream
  bool causal = false;
  bool bias = true;     // of the projections
  bool rotary = false;  // positions
  double rotary_base = 10000;
  int64_t conv = 0;  // width of the short convolution; 0: none
  bool head_norm = false;
  // Of training: see ModelConfig.
  bool learned_sigma = true;
  int64_t pool = 0;
  double span_min = 0, span_max = 0;

  int64_t head_dim() const { return width / heads; }
  int64_t key_width() const { return key_heads * head_dim(); }  // G d
};

struct AttentionPlan : AttentionSettings {
  std::string name = {};
  LinearLayerPlan q = {}, k = {}, v = {}, out = {};
  std::optional<TensorPlan> conv_q = {}, conv_k = {}, conv_v = {};  // [E, conv], [G d, conv]
  std::optional<TensorPlan> head_norm_weight = {};                  // [H, d]
  std::optional<MapPlan> map = {};                                  // of estimators that have one
  std::optional<LinearLayerPlan> gate = {};                         // of gated ones: E -> G
  std::optional<TensorPlan> log_scale = {};                         // of those that blend: [H]
};

// An attention alone. `name` is put before those of its tensors; empty: they stand alone.
RAFFIA_SIBLING_API AttentionPlan plan_attention(std::string_view name, const AttentionSettings& settings);

struct LayerPlan {
  std::string name = {};
  NormPlan attention_norm = {};
  AttentionPlan attention = {};
  std::optional<NormPlan> cross_norm = {};
  std::optional<AttentionPlan> cross = {};  // to a source
  NormPlan ffn_norm = {};
  LinearLayerPlan ffn_up = {}, ffn_down = {};
  std::optional<LinearLayerPlan> ffn_gate = {};  // swiglu
};

struct RAFFIA_SIBLING_API StackPlan {
  std::string name = {};
  std::optional<TablePlan> positions = {};  // learned; absent: texts of any length
  std::vector<LayerPlan> layers = {};
  NormPlan norm = {};
  double dropout = 0;

  // Branches that are added to the residual stream.
  int64_t branches() const;
};

struct ModelPlan {
  std::optional<TablePlan> embedding = {};              // of tokens
  std::optional<LinearLayerPlan> patches = {};          // of images
  std::optional<StackPlan> encoder = {}, decoder = {};  // bidirectional, causal
  std::optional<LinearLayerPlan> output = {};           // h -> logits of tokens; absent with a decoder: the embedding is used
  std::optional<LinearLayerPlan> head = {};             // features -> classes
  std::vector<TensorPlan> tensors = {};                 // all of the above, in this order

  const TensorPlan* find(std::string_view name) const;  // null: the model has no such tensor
  int64_t parameters() const;                           // elements of all tensors
};

// config.check() has passed.
RAFFIA_SIBLING_API ModelPlan plan_of(const ModelConfig& config);

// Throws FormatError unless the file has the tensors of the plan with their shapes, and no others but scales of stored matrices.
RAFFIA_SIBLING_API void require_tensors(const Safetensors& file, const ModelPlan& plan, std::string_view where);

// The tensors of such a file, to be written again. `file` must outlive them.
std::vector<WeightSource> planned_weights(const Safetensors& file, const ModelPlan& plan, std::string_view where);

}  // namespace raffia::internal

#endif  // RAFFIA_MODEL_PLAN_H_
