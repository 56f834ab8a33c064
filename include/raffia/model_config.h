// config.json of a model directory: the architecture of a model. The trainer writes it and the runtime reads it.
#ifndef RAFFIA_MODEL_CONFIG_H_
#define RAFFIA_MODEL_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/estimator.h"

namespace raffia {

enum class Task : uint8_t { lm, translate, classify, image };
enum class Positions : uint8_t { none, rotary, learned };
enum class Norm : uint8_t { layer, rms };           // by mean and variance, or by the mean square only
enum class FeedForward : uint8_t { gelu, swiglu };  // down(gelu(up x)), or down(silu(gate x) o up x)

RAFFIA_API std::string_view name_of(Task task);
RAFFIA_API std::string_view name_of(Positions positions);
RAFFIA_API std::string_view name_of(Norm norm);
RAFFIA_API std::string_view name_of(FeedForward feed_forward);
RAFFIA_API Task parse_task(std::string_view name);            // throws InvalidArgument and lists the names
RAFFIA_API Positions parse_positions(std::string_view name);  // the same
RAFFIA_API Norm parse_norm(std::string_view name);
RAFFIA_API FeedForward parse_feed_forward(std::string_view name);

struct RAFFIA_API ModelConfig {
  Task task = Task::lm;
  int64_t vocabulary = 0;  // of the tokenizer; 0 for images. translate: source and target share it
  int64_t width = 256;     // E
  int64_t heads = 4;       // H; width / heads is d
  int64_t kv_heads = 0;    // G, a divisor of H: each key and value head serves H / G query heads; 0: H
  int64_t layers = 4;      // of the decoder (lm), of encoder and decoder each (translate), of the encoder (classify, image)
  int64_t ffn = 0;         // inner width of the feed-forward layer; 0: 4 * width
  Norm norm = Norm::layer;
  double norm_eps = 1e-5;
  FeedForward feed_forward = FeedForward::gelu;
  bool bias = true;  // of the linear layers of attention and feed-forward layers (gates always have one)
  bool tied = true;  // lm, translate: logits are h embedding^T; false: h output^T, with a separate matrix
  // One for all layers, or one per layer. translate: for self attention in encoder (bidirectional) and decoder (causal).
  std::vector<Estimator> estimators = {};
  Estimator cross = {};  // translate: the decoder's attention to the source
  Positions positions = Positions::none;
  int64_t max_length = 0;  // number of learned positions; 0 for others
  double rotary_base = 10000;
  int64_t conv = 0;           // width of the short causal convolution on q, k and v; 0: none
  bool head_norm = false;     // RMS norm of each head's output
  bool learned_sigma = true;  // random maps: sigma is trained
  int64_t pool = 200;         // number of random matrices that training picks from
  // Gates: the initial spans 1 / (1 - g) of the heads form a geometric sequence between these. 0: default of the estimator
  // (rfa_gate 2..256, hybrid 16..512).
  double span_min = 0, span_max = 0;
  double dropout = 0;
  int64_t classes = 0;                              // classify, image
  bool pairs = false;                               // classify: two texts, one label
  int64_t image_size = 0, channels = 0, patch = 0;  // image: square images, square patches
  uint64_t seed = 1;                                // of the draws of random maps
  bool operator==(const ModelConfig&) const = default;

  int64_t head_dim() const { return width / heads; }
  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t ffn_width() const { return ffn == 0 ? 4 * width : ffn; }
  const Estimator& estimator(int64_t layer) const;

  void check(std::string_view where) const;  // throws FormatError, which names the field
};

// Every field is written, and the version of the format first. A missing field has the default above, and an unknown one is
// ignored (docs/model-format.md). FormatErrors that name the field: a wrong type or value, a name that resembles a known one, and
// an unknown field that the file lists in "requires".
RAFFIA_API std::string to_json(const ModelConfig& config);
RAFFIA_API ModelConfig model_config_from_json(std::string_view text, std::string_view where);
RAFFIA_API void save_model_config(const ModelConfig& config, const std::filesystem::path& path);  // atomic
RAFFIA_API ModelConfig load_model_config(const std::filesystem::path& path);

}  // namespace raffia

#endif  // RAFFIA_MODEL_CONFIG_H_
