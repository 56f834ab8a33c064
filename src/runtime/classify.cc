// Classifiers: a text or an image through the encoder, the mean of its tokens, one linear layer.
#include "core/check.h"
#include "raffia/model.h"
#include "runtime/graph.h"
#include "runtime/model_access.h"
#include "runtime/products.h"
#include "runtime/sampler.h"

namespace raffia {

using namespace internal;
namespace {

using runtime::Graph;
using runtime::graph_of;
using runtime::Turn;
using runtime::Workspace;

std::vector<float> mean_of_rows(const float* x, int64_t rows, int64_t width) {
  std::vector<float> mean(static_cast<size_t>(width));
  for (int64_t c = 0; c < width; ++c) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += x[r * width + c];
    mean[static_cast<size_t>(c)] = static_cast<float>(sum / static_cast<double>(rows));
  }
  return mean;
}

std::vector<float> mean_of_text(const Graph& graph, std::span<const int32_t> ids, const RunOptions& options) {
  graph.require_ids("classify", ids);
  std::vector<int32_t> tokens(ids.begin(), ids.end());
  std::erase(tokens, Tokenizer::kPad);
  if (tokens.empty()) tokens.push_back(Tokenizer::kUnknown);
  ids = tokens;
  graph.require_room("classify", graph.encoder(), static_cast<int64_t>(ids.size()));
  Workspace work;
  return mean_of_rows(graph.encode(ids, options, work), static_cast<int64_t>(ids.size()), graph.config().width);
}

std::vector<float> scores(const Graph& graph, const std::vector<float>& features, const RunOptions& options) {
  std::vector<float> logits(static_cast<size_t>(graph.config().classes));
  const Turn turn{.rows = 1, .run = options};
  runtime::multiply(
      {{&graph.head(), features.data(), static_cast<int64_t>(features.size()), logits.data(), graph.config().classes}}, turn);
  runtime::require_finite("classify", "class", logits);
  return logits;
}

}  // namespace

std::vector<float> classify(const Model& model, std::span<const int32_t> ids, const RunOptions& options) {
  const Graph& graph = graph_of(model);
  graph.require_task("classify", Task::classify);
  require(!graph.config().pairs, "classify: one text is given, expected two: the model is for pairs");
  return scores(graph, mean_of_text(graph, ids, options), options);
}

std::vector<float> classify_pair(const Model& model, std::span<const int32_t> first, std::span<const int32_t> second,
                                 const RunOptions& options) {
  const Graph& graph = graph_of(model);
  graph.require_task("classify_pair", Task::classify);
  require(graph.config().pairs, "classify_pair: two texts are given, expected one: the model is not for pairs");
  const std::vector<float> a = mean_of_text(graph, first, options), b = mean_of_text(graph, second, options);
  std::vector<float> features;
  features.insert(features.end(), a.begin(), a.end());
  features.insert(features.end(), b.begin(), b.end());
  for (size_t i = 0; i < a.size(); ++i) features.push_back(a[i] * b[i]);
  for (size_t i = 0; i < a.size(); ++i) features.push_back(a[i] - b[i]);
  return scores(graph, features, options);
}

std::vector<float> classify_image(const Model& model, std::span<const float> pixels, const RunOptions& options) {
  const Graph& graph = graph_of(model);
  const ModelConfig& config = graph.config();
  graph.require_task("classify_image", Task::image);
  const int64_t size = config.image_size, channels = config.channels, patch = config.patch, side = size / patch;
  require(static_cast<int64_t>(pixels.size()) == channels * size * size,
          "classify_image: {} pixels are given, expected {} ({} channels of {} x {})", pixels.size(), channels * size * size,
          channels, size, size);
  // A patch is [channels, patch, patch]; patches come row by row.
  const int64_t rows = side * side, inputs = channels * patch * patch;
  std::vector<float> cut;
  cut.reserve(pixels.size());
  for (int64_t row = 0; row < side; ++row) {
    for (int64_t column = 0; column < side; ++column) {
      for (int64_t c = 0; c < channels; ++c) {
        for (int64_t y = 0; y < patch; ++y) {
          for (int64_t x = 0; x < patch; ++x) {
            cut.push_back(2 * pixels[static_cast<size_t>((c * size + row * patch + y) * size + column * patch + x)] - 1);
          }
        }
      }
    }
  }
  Workspace work;
  const std::vector<int64_t> positions = runtime::positions_from(0, rows);
  const Turn turn{.form = Turn::Form::whole, .rows = rows, .positions = positions, .run = options};
  float* x = work.x.of(rows * config.width);
  runtime::multiply({{&graph.patches(), cut.data(), inputs, x, config.width}}, turn);
  graph.encoder().forward(x, turn, work);
  return scores(graph, mean_of_rows(x, rows, config.width), options);
}

}  // namespace raffia
