// raffia convert: replaces the softmax attention of a model by another attention.
#include "torch/train/convert.h"

#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/table.h"
#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "core/message.h"
#include "core/split.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "torch/libtorch.h"
#include "torch/train/texts.h"

namespace raffia::internal::cli {
namespace {

using bench::json_of;
using bench::Style;

namespace fs = std::filesystem;

struct ConvertFlags {
  fs::path model, out, data;
  std::string to;
  bool no_positions = false;
  std::optional<int64_t> samples;
  uint64_t seed = 1;
  int64_t threads = 0;
  bool force = false;
  train::FitOptions fit;
  FormatFlags output;
};

// The map that comes closest to softmax attention after fitting: docs/convert.md.
constexpr MapKind kMap = MapKind::relu;

std::vector<Estimator> estimators_of(const ConvertFlags& flags) {
  std::vector<Estimator> estimators;
  for (const std::string_view text : split(flags.to, ';')) {
    Estimator estimator = train::parse_estimator_option("to", text);
    if (traits_of(estimator).has_map && text.find("map=") == std::string_view::npos) estimator.map = kMap;
    if (const EstimatorTraits traits = traits_of(estimator); flags.samples && !traits.is_exact) {
      if (!traits.has_samples && !traits.has_map)
        throw UsageError(fmt::format("--samples: {} has no samples", name_of(estimator.kind)));
      estimator.samples = flags.samples;
    }
    estimators.push_back(estimator);
  }
  return estimators;
}

std::string human_error(const Json& value) { return fmt::format("{:.4f}", value.get<double>()); }

const bench::RecordColumn<train::LayerFit> kFitColumns[] = {
    {"layer", [](const train::LayerFit& r) { return json_of(r.layer); }, Style::key},
    {"estimator", [](const train::LayerFit& r) { return json_of(to_string(r.estimator)); }},
    {"error_at_first", [](const train::LayerFit& r) { return json_of(r.error_at_first); }, Style::measured, human_error},
    {"error_searched", [](const train::LayerFit& r) { return json_of(r.error_searched); }, Style::measured, human_error},
    {"error", [](const train::LayerFit& r) { return json_of(r.error); }, Style::measured, human_error},
    {"sigma", [](const train::LayerFit& r) { return r.sigma > 0 ? Json(r.sigma) : Json(nullptr); }, Style::measured, human_error},
};

void refuse_existing(const ConvertFlags& flags) {
  if (fs::exists(flags.out / "trainer")) {
    throw UsageError(
        fmt::format("{}: contains a training run, which is never overwritten: choose another directory", flags.out.string()));
  }
  if (!flags.force && fs::exists(flags.out) && !(fs::is_directory(flags.out) && fs::is_empty(flags.out))) {
    throw UsageError(fmt::format("{}: already exists: choose another directory, or --force to replace it", flags.out.string()));
  }
  if (is_same_file(flags.model, flags.out)) {
    throw UsageError(fmt::format("{}: is the directory of the model itself: choose another directory", flags.out.string()));
  }
}

void run(const ConvertFlags& flags) {
  if (flags.threads > 0) at::set_num_threads(static_cast<int>(flags.threads));
  refuse_existing(flags);
  const ModelConfig source_config = load_model_config(flags.model / kConfigFile);
  ModelConfig config;
  try {
    config = train::converted_config(source_config, estimators_of(flags), flags.seed);
    if (flags.no_positions) {
      if (config.positions != Positions::rotary)
        throw UsageError(fmt::format("--no-positions: the model has {} positions, expected rotary", name_of(config.positions)));
      config.positions = Positions::none;
    }
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what());
  }
  nn::LanguageModelImpl source(source_config);
  nn::load_weights(source, flags.model / kWeightsFile);
  const auto tokenizer = load_tokenizer(flags.model);
  const auto converted = train::make_converted(source, config);
  std::vector<train::LayerFit> fits;
  if (!flags.data.empty()) {
    const std::string text = read_for(tokenizer->kind(), flags.data);
    train::FitOptions options = flags.fit;
    Progress progress(static_cast<double>(source_config.layers));
    options.progress = [&progress](int64_t layer, int64_t layers) {
      if (layer > 0) progress.advance(1);
      progress.begin(fmt::format("fitting the attention of layer {} of {}", layer + 1, layers));
    };
    fits = train::fit_attention(source, *converted, encode_text(*tokenizer, text), options);
  }
  if (flags.out.has_parent_path()) fs::create_directories(flags.out.parent_path());
  NewModelDirectory fresh(flags.out, {.replace = flags.force});
  tokenizer->save(fresh.path());
  nn::save_weights(*converted, fresh.path() / kWeightsFile, tokenizer->fingerprint());
  save_model_config(config, fresh.path() / kConfigFile);
  fresh.commit();
  if (!fits.empty()) print_table(kFitColumns, std::span<const train::LayerFit>(fits), flags.output.format(), std::cout);
  say("{}: finetune it with raffia train lm --init {} --data TEXT --out DIR", flags.out.string(), flags.out.string());
}

}  // namespace

Run add_convert(CommandLine& command) {
  const auto flags = std::make_shared<ConvertFlags>();
  command.add("model", flags->model, "Directory of a language model with softmax attention").type_name("DIR").required();
  command.add("out", flags->out, "Directory to write").type_name("OUT").required();
  command
      .add("--to", flags->to,
           "Attention of all layers, or one per layer separated by ';': rfa_gate, rfa, hybrid, eva, lara, window; softmax "
           "keeps a layer unchanged")
      .type_name("TEXT")
      .required();
  command.add("--data", flags->data, "Text to fit maps and gates on; without it they are initialised as in a new model")
      .type_name("FILE");
  command.add_switch("--no-positions", flags->no_positions, "Drop rotary positions (default: keep them)");
  add_positive(command, "--samples", flags->samples, "Number of random features or samples, unless --to sets it");
  add_positive(command, "--segment", flags->fit.segment, "Tokens per segment of --data; each is read from empty memory");
  add_positive(command, "--segments", flags->fit.segments, "Number of segments of --data to fit to");
  add_count(command, "--fit-steps", flags->fit.steps, "Steps of Adam on the new parameters; 0: only the search for a scale");
  add_seed(command, "--seed", flags->seed, "Seed of random features");
  add_positive(command, "--threads", flags->threads, "Threads (default: chosen by torch)", kMaxThreads);
  command.add_switch("--force", flags->force, "Replace an existing model");
  add_format_flags(command, flags->output);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
