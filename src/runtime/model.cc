#include "raffia/model.h"

#include <fmt/format.h>

#include "core/check.h"
#include "io/formats/file.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/graph.h"

namespace raffia {

using runtime::Graph;

Model::Model(std::unique_ptr<const Graph> graph, std::filesystem::path directory)
    : graph_(std::move(graph)), directory_(std::move(directory)) {}
Model::~Model() = default;

namespace {

std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  File file = File::open_to_read(path);
  file.require_stored("weights");
  std::vector<std::byte> bytes(file.size());
  bytes.resize(file.read(bytes));
  return bytes;
}

}  // namespace

std::shared_ptr<const Model> Model::load(const std::filesystem::path& directory, const LoadOptions& options) {
  const ModelConfig config = load_model_config(directory / kConfigFile);
  const std::filesystem::path weights = directory / kWeightsFile;
  std::shared_ptr<const Tokenizer> tokenizer;
  if (config.task != Task::image) {
    tokenizer = load_tokenizer(directory);
    if (tokenizer->vocabulary() != config.vocabulary) {
      throw FormatError(fmt::format("{}: the tokenizer has {} ids, expected {} (vocabulary of config.json)", directory.string(),
                                    tokenizer->vocabulary(), config.vocabulary));
    }
  }
  auto graph = std::make_unique<const Graph>(config, options.map ? std::make_unique<const MappedFile>(weights) : nullptr,
                                             options.map ? std::vector<std::byte>() : bytes_of(weights), std::move(tokenizer),
                                             weights.string());
  graph->require_session_bytes(options.max_session_bytes);
  require_seals(graph->metadata(), config, graph->tokenizer() == nullptr ? 0 : graph->tokenizer()->fingerprint(),
                directory.string());
  graph->require_checksum();
  return std::shared_ptr<const Model>(new Model(std::move(graph), directory));
}

std::shared_ptr<const Model> Model::over(const ModelConfig& config, std::vector<std::byte> safetensors,
                                         std::shared_ptr<const Tokenizer> tokenizer, std::string_view where) {
  auto graph = std::make_unique<const Graph>(config, nullptr, std::move(safetensors), std::move(tokenizer), where);
  graph->require_session_bytes(LoadOptions{}.max_session_bytes);
  return std::shared_ptr<const Model>(new Model(std::move(graph), {}));
}

void Model::require_unchanged() const { graph_->require_unchanged(); }

const ModelConfig& Model::config() const { return graph_->config(); }

const Tokenizer& Model::tokenizer() const {
  require(graph_->tokenizer() != nullptr, "Model::tokenizer: {} has no tokenizer", graph_->where());
  return *graph_->tokenizer();
}

uint64_t Model::fingerprint() const { return graph_->fingerprint(); }
size_t Model::weight_bytes() const { return graph_->weight_bytes(); }
int64_t Model::parameters() const { return graph_->parameters(); }
std::string_view Model::weight_type() const { return graph_->weight_type(); }

}  // namespace raffia
