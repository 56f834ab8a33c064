#include "io/imports/llama2c.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <optional>
#include <string>

#include "io/formats/text.h"
#include "model/plan.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr size_t kHeaderWords = 7;
constexpr uint64_t kHeaderBytes = kHeaderWords * sizeof(int32_t);
constexpr int64_t kMaxSize = 1 << 24;  // of any number in the header: products of two fit easily
constexpr uint32_t kVersionedMagic = 0x616b3432;

struct Sizes {
  int64_t width, ffn, layers, heads, kv_heads, vocabulary, length;
  bool tied;
};

Sizes read_sizes(const ByteSource& source) {
  const auto refuse = [&source](const std::string& what) { throw FormatError(fmt::format("{}: {}", source.name(), what)); };
  if (source.size() < kHeaderBytes) {
    refuse(fmt::format("{} bytes, expected at least {}: truncated, or not a llama2.c model", source.size(), kHeaderBytes));
  }
  std::array<std::byte, kHeaderBytes> header;
  source.read(0, header);
  if (little_endian<uint32_t>(header) == kVersionedMagic) {
    refuse("is of a later version of llama2.c, expected the legacy one (export.py --version 0)");
  }
  constexpr const char* kNames[kHeaderWords] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                                "n_kv_heads", "vocab_size", "seq_len"};
  constexpr size_t kVocabulary = 5;
  std::array<int64_t, kHeaderWords> values;
  bool tied = true;
  for (size_t i = 0; i < kHeaderWords; ++i) {
    values[i] = std::bit_cast<int32_t>(little_endian<uint32_t>(header, i * sizeof(int32_t)));
    if (i == kVocabulary && values[i] < 0) {  // its sign says that the output has weights of its own
      values[i] = -values[i];
      tied = false;
    }
    if (values[i] < 1 || values[i] > kMaxSize) {
      refuse(fmt::format("{} is {}, expected 1 to {}: not a llama2.c model", kNames[i], values[i], kMaxSize));
    }
  }
  return {values[0], values[1], values[2], values[3], values[4], values[5], values[6], tied};
}

ModelConfig config_of(const Sizes& sizes, std::string_view where) {
  ModelConfig config;
  config.vocabulary = sizes.vocabulary;
  config.width = sizes.width;
  config.heads = sizes.heads;
  config.kv_heads = sizes.kv_heads;
  config.layers = sizes.layers;
  config.ffn = sizes.ffn;
  config.norm = Norm::rms;
  config.norm_eps = 1e-5;
  config.feed_forward = FeedForward::swiglu;
  config.bias = false;
  config.tied = sizes.tied;
  config.estimators = {Estimator{}};
  config.positions = Positions::rotary;
  config.rotary_base = 10000;
  config.check(where);
  return config;
}

// Lays tensors out one after the other, in the order of the file.
class TensorLayout {
 public:
  TensorLayout(const ByteSource& source, uint64_t at) : source_(source), at_(at) {}

  void skip(int64_t floats) { at_ += static_cast<uint64_t>(floats) * sizeof(float); }

  // `turned_heads`: rows of so many heads whose pairs (2 i, 2 i + 1) turn together; ours are (i, i + d / 2).
  void add(const TensorPlan& tensor, int64_t turned_heads = 0) {
    const std::vector<int64_t>& shape = tensor.shape;
    const int64_t columns = shape.size() == 2 ? shape[1] : 1;
    const int64_t head = turned_heads == 0 ? 0 : shape[0] / turned_heads;
    const auto read = [&source = source_, at = at_, columns, head](int64_t first_row, std::span<float> rows) {
      const auto offset = [&](int64_t row) { return at + static_cast<uint64_t>(row * columns) * sizeof(float); };
      if (head == 0) return read_floats(source, offset(first_row), ElementType::f32, rows);
      for (size_t i = 0; i * static_cast<size_t>(columns) < rows.size(); ++i) {
        const int64_t row = first_row + static_cast<int64_t>(i), within = row % head;
        const int64_t theirs = row - within + (within < head / 2 ? 2 * within : 2 * (within - head / 2) + 1);
        read_floats(source, offset(theirs), ElementType::f32,
                    rows.subspan(i * static_cast<size_t>(columns), static_cast<size_t>(columns)));
      }
    };
    skip(shape[0] * columns);
    tensors_.push_back({.name = tensor.name,
                        .shape = shape,
                        .read = read,
                        .is_matrix = tensor.is_matrix(),
                        .is_vocabulary = tensor.is_vocabulary()});
  }

  uint64_t end() const { return at_; }
  std::vector<WeightSource> take() { return std::move(tensors_); }

 private:
  const ByteSource& source_;
  uint64_t at_;
  std::vector<WeightSource> tensors_;
};

}  // namespace

ImportedModel llama2c_model(const ByteSource& source) {
  const Sizes sizes = read_sizes(source);
  // The checks of a config bound the number of weights: offsets stay far below 2^63.
  ImportedModel model{.config = config_of(sizes, source.name()), .weights = {}};
  const ModelPlan plan = plan_of(model.config);

  TensorLayout layout(source, kHeaderBytes);
  const auto add_layers = [&](const auto& tensor_of, int64_t turned_heads = 0) {
    for (const LayerPlan& layer : plan.decoder->layers) layout.add(tensor_of(layer), turned_heads);
  };
  const auto add_linear = [&](LinearLayerPlan LayerPlan::*part) {
    add_layers([part](const LayerPlan& layer) { return (layer.*part).weight; });
  };
  const auto add_projection = [&](LinearLayerPlan AttentionPlan::*part, int64_t turned_heads = 0) {
    add_layers([part](const LayerPlan& layer) { return (layer.attention.*part).weight; }, turned_heads);
  };
  layout.add(plan.embedding->weight);
  add_layers([](const LayerPlan& layer) { return layer.attention_norm.weight; });
  add_projection(&AttentionPlan::q, sizes.heads);
  add_projection(&AttentionPlan::k, sizes.kv_heads);
  add_projection(&AttentionPlan::v);
  add_projection(&AttentionPlan::out);
  add_layers([](const LayerPlan& layer) { return layer.ffn_norm.weight; });
  add_layers([](const LayerPlan& layer) { return layer.ffn_gate->weight; });
  add_linear(&LayerPlan::ffn_down);
  add_linear(&LayerPlan::ffn_up);
  layout.add(plan.decoder->norm.weight);
  layout.skip(sizes.length * model.config.head_dim());  // cosines and sines, which follow from the sizes
  if (plan.output) layout.add(plan.output->weight);

  if (layout.end() != source.size()) {
    throw FormatError(fmt::format("{}: {} bytes, expected {} (from its sizes): {}", source.name(), grouped(source.size()),
                                  grouped(layout.end()),
                                  layout.end() > source.size() ? "truncated" : "unexpected bytes at the end"));
  }
  model.weights = layout.take();
  return model;
}

}  // namespace raffia::internal
