// raffia quantize: stores the matrices of a model as bf16, int8 or int4.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/new_model.h"
#include "core/weight_matrix.h"
#include "io/data/datasets.h"
#include "io/data/texts.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "model/model_directory.h"
#include "model/plan.h"
#include "raffia/error.h"
#include "raffia/model.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"
#include "runtime/text_loss.h"

namespace raffia::internal::cli {
namespace {

struct QuantizeOptions {
  std::string from, to, data;
  WeightType type = WeightType::int8;
  bool force = false, json = false;
};

void quantize(const QuantizeOptions& options) {
  const std::filesystem::path from = options.from, weights = from / kWeightsFile;
  require_another_directory("OUT", from, options.to);
  ImportedModel model{.config = load_model_config(from / kConfigFile), .weights = {}};
  const Safetensors file = Safetensors::open(weights);
  file.require_checksum();
  model.weights = planned_weights(file, plan_of(model.config), weights.string());
  // Models of images and of made-up tokens have none.
  const bool has_tokenizer = std::filesystem::exists(from / kTokenizerFile);
  const std::unique_ptr<Tokenizer> tokenizer = has_tokenizer ? load_tokenizer(from) : nullptr;
  require_seals(file.metadata(), model.config, tokenizer ? tokenizer->fingerprint() : 0, from.string());
  if (std::filesystem::exists(from / kClassesFile)) model.classes = load_classes(from);
  // First: a model is not written if the command cannot do the rest.
  std::vector<int32_t> ids;
  std::optional<runtime::TextLoss> before, after;
  if (!options.data.empty()) {
    if (model.config.task != Task::lm || tokenizer == nullptr) {
      throw FormatError(fmt::format("{}: expected a language model with a tokenizer for --data", options.from));
    }
    ids = encode_text(*tokenizer, read_for(tokenizer->kind(), options.data));
    if (ids.size() < 2) throw FormatError(fmt::format("{}: {} tokens, expected at least 2", options.data, ids.size()));
    before = runtime::loss_of_text(Model::load(from), ids);
  }
  const StorageReport report =
      save_with_progress(model, weights.string(), tokenizer.get(), options.to, options.type, options.force);
  const uint64_t bytes_before = std::filesystem::file_size(weights);
  if (before) after = runtime::loss_of_text(Model::load(options.to), ids);
  if (options.json) {
    Json json = describe(model, options.to, options.type, report);
    json["bytes_before"] = bytes_before;
    json["matrices"] = report.matrices;
    json["rows"] = report.rows;
    json["row_error_mean"] = report.mean;
    json["row_error_worst"] = report.worst;
    json["row_error_worst_tensor"] = report.worst_tensor;
    if (after) {
      json["loss_tokens"] = after->tokens;
      json["loss_before"] = before->nats;
      json["loss"] = after->nats;
    }
    std::cout << json_text(json, 2) << '\n';
    return;
  }
  std::cout << fmt::format("{}: {} matrices as {}, {} bytes, {} before ({:.2f} times the size)\n", options.to, report.matrices,
                           name_of(options.type), grouped(report.bytes), grouped(bytes_before),
                           static_cast<double>(report.bytes) / static_cast<double>(bytes_before));
  std::cout << fmt::format("relative error of rows: mean {:.2e}, worst {:.2e}{}\n", report.mean, report.worst,
                           report.worst_tensor.empty() ? "" : " in " + report.worst_tensor);
  if (after) {
    std::cout << fmt::format("loss on {}: {:.4f} nats per token, {:.4f} before ({} tokens)\n", options.data, after->nats,
                             before->nats, grouped(after->tokens));
  }
}

}  // namespace

Run add_quantize(CommandLine& command) {
  const auto options = std::make_shared<QuantizeOptions>();
  command.add("DIR", options->from, "Model directory").required();
  command.add("OUT", options->to, "Model directory to write").required();
  add_name(
      command, "--type", kWeightTypes, options->type,
      fmt::format("Storage type of matrices: {}; int8 has a scale per row, int4 one per 32 columns", joined_names(kWeightTypes)));
  command.add("--data", options->data, "Text (.gz and .xz are read) on which the loss is measured before and after")
      .type_name("FILE");
  command.add_switch("--force", options->force, "Replace a model that is already in OUT");
  command.add_switch("--json", options->json, "Print JSON");
  return [options] { quantize(*options); };
}

}  // namespace raffia::internal::cli
