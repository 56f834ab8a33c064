#include "raffia/model.h"

#include <fmt/format.h>

#include "core/check.h"
#include "io/formats/file.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/graph.h"
#include "runtime/model_access.h"

namespace raffia {

using namespace internal;

using runtime::Graph;

struct Model::Impl {
  template <class... Arguments>
  explicit Impl(Arguments&&... arguments) : graph(std::forward<Arguments>(arguments)...) {}

  const Graph graph;
};

Model::Model(std::unique_ptr<const Impl> impl, std::filesystem::path directory)
    : impl_(std::move(impl)), directory_(std::move(directory)) {}
Model::~Model() = default;

const Graph& internal::ModelAccess::graph(const Model& model) { return model.impl_->graph; }

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
  auto impl = std::make_unique<const Impl>(config, options.map ? std::make_unique<const MappedFile>(weights) : nullptr,
                                           options.map ? std::vector<std::byte>() : bytes_of(weights), std::move(tokenizer),
                                           weights.string());
  const Graph& graph = impl->graph;
  graph.require_session_bytes(options.max_session_bytes);
  require_seals(graph.metadata(), config, graph.tokenizer() == nullptr ? 0 : graph.tokenizer()->fingerprint(),
                directory.string());
  graph.require_checksum();
  return std::shared_ptr<const Model>(new Model(std::move(impl), directory));
}

std::shared_ptr<const Model> Model::over(const ModelConfig& config, std::vector<std::byte> safetensors,
                                         std::shared_ptr<const Tokenizer> tokenizer, std::string_view where) {
  auto impl = std::make_unique<const Impl>(config, nullptr, std::move(safetensors), std::move(tokenizer), where);
  impl->graph.require_session_bytes(LoadOptions{}.max_session_bytes);
  return std::shared_ptr<const Model>(new Model(std::move(impl), {}));
}

void Model::require_unchanged() const { impl_->graph.require_unchanged(); }

const ModelConfig& Model::config() const { return impl_->graph.config(); }

const Tokenizer& Model::tokenizer() const {
  require(impl_->graph.tokenizer() != nullptr, "Model::tokenizer: {} has no tokenizer", impl_->graph.where());
  return *impl_->graph.tokenizer();
}

uint64_t Model::fingerprint() const { return impl_->graph.fingerprint(); }
size_t Model::weight_bytes() const { return impl_->graph.weight_bytes(); }
int64_t Model::parameters() const { return impl_->graph.parameters(); }
std::string_view Model::weight_type() const { return impl_->graph.weight_type(); }

}  // namespace raffia
