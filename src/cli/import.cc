// raffia import: makes model directories from models of other programs.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/new_model.h"
#include "core/weight_matrix.h"
#include "io/formats/byte_source.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "io/imports/hf.h"
#include "io/imports/llama2c.h"
#include "io/tokenizers/tokenizer_scored.h"
#include "model/model_directory.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

struct ImportOptions {
  std::string model, pieces, directory;
  std::string type;  // hf; empty: as it is stored
  bool force = false, json = false;
};

void print(const ImportedModel& model, const Tokenizer& tokenizer, const ImportOptions& options, WeightType type,
           const StorageReport& report) {
  Json json = describe(model, options.directory, type, report);
  json["tokenizer"] = tokenizer.kind();
  if (options.json) {
    std::cout << json_text(json, 2) << '\n';
    return;
  }
  const ModelConfig& config = model.config;
  std::cout << fmt::format("{}: {} layers, {} wide, {} heads ({} of keys), vocabulary {} ({}), {} parameters, {}, {} bytes\n",
                           options.directory, config.layers, config.width, config.heads, config.key_heads(), config.vocabulary,
                           tokenizer.kind(), grouped(json["parameters"].get<uint64_t>()), name_of(type), grouped(report.bytes));
}

void import_llama2c(const ImportOptions& options) {
  const FileSource source(options.model);
  const ImportedModel model = llama2c_model(source);
  const std::string bytes = read_file(options.pieces, uint64_t{1} << 28);
  const auto tokenizer = make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(bytes)), options.pieces));
  if (tokenizer->vocabulary() != model.config.vocabulary) {
    throw FormatError(fmt::format("{}: {} pieces, expected {} (the vocabulary of {})", options.pieces, tokenizer->vocabulary(),
                                  model.config.vocabulary, options.model));
  }
  const StorageReport report =
      save_with_progress(model, options.model, tokenizer.get(), options.directory, WeightType::f32, options.force);
  print(model, *tokenizer, options, WeightType::f32, report);
}

void import_hf(const ImportOptions& options) {
  require_another_directory("DIR", options.model, options.directory);
  const HfModel loaded = load_hf(options.model);
  const WeightType type = !options.type.empty() ? parse_name("--type", options.type, kWeightTypes)
                          : loaded.all_bf16     ? WeightType::bf16
                                                : WeightType::f32;
  const StorageReport report =
      save_with_progress(loaded.model, options.model, loaded.tokenizer.get(), options.directory, type, options.force);
  print(loaded.model, *loaded.tokenizer, options, type, report);
}

void add_common(CommandLine& command, ImportOptions& options) {
  command.add("DIR", options.directory, "Model directory to write").required();
  command.add_switch("--force", options.force, "Replace a model that is already in DIR");
  command.add_switch("--json", options.json, "Print JSON");
}

}  // namespace

Run add_import_llama2c(CommandLine& command) {
  const auto options = std::make_shared<ImportOptions>();
  command.add("MODEL.bin", options->model, "Checkpoint of llama2.c, legacy layout").required();
  command.add("TOK.bin", options->pieces, "Its tokenizer").required();
  add_common(command, *options);
  return [options] { import_llama2c(*options); };
}

Run add_import_hf(CommandLine& command) {
  const auto options = std::make_shared<ImportOptions>();
  command.add("SRC", options->model, "Directory with config.json, model.safetensors (or its parts) and tokenizer.json")
      .required();
  add_common(command, *options);
  command
      .add_parsed(
          "--type",
          [options](const std::string& text) {
            (void)parse_name("--type", text, kWeightTypes);
            options->type = text;
          },
          fmt::format("Storage type of matrices: {} (default: bf16 files stay bf16, others become f32)",
                      joined_names(kWeightTypes)))
      .type_name("NAME")
      .choices(joined_names(kWeightTypes));
  return [options] { import_hf(*options); };
}

}  // namespace raffia::internal::cli
