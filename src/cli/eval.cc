// raffia eval: how good a trained model is on data that it was not trained on.
#include "cli/eval.h"

#include <cmath>
#include <memory>

#include "cli/train_commands.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "torch/libtorch.h"
#include "torch/train/checkpoint.h"

namespace raffia::cli {

TrainedWith trained_with(const std::filesystem::path& model) {
  TrainedWith trained;
  const std::filesystem::path path = model / "trainer" / "options.json";
  if (!std::filesystem::exists(path)) return trained;
  JsonFields options = JsonFields::parse(read_file(path, train::kMaxBytesOfRunJson), path.string());
  if (options.has("segment")) trained.segment = options.integer("segment", 1, INT64_MAX);
  if (options.has("source")) trained.source = options.string("source");
  if (options.has("target")) trained.target = options.string("target");
  if (options.has("label-column")) trained.label_column = options.string("label-column");
  if (options.has("text-column")) trained.text_column = options.integer("text-column", 0, INT64_MAX);
  return trained;
}

void require_finite_nll(double nll) {
  if (std::isfinite(nll)) return;
  throw Error(
      fmt::format("the negative log-likelihood is {}, expected a finite number: the weights of the model are damaged", nll));
}

namespace {

void run(const EvalFlags& flags) {
  if (flags.threads > 0) at::set_num_threads(static_cast<int>(flags.threads));
  const ModelConfig config = load_model_config(flags.model / kConfigFile);
  switch (config.task) {
    case Task::lm:
      return evaluate_lm(flags, config);
    case Task::translate:
      return evaluate_translator(flags, config);
    case Task::classify:
      return evaluate_classifier(flags, config);
    case Task::image:
      return evaluate_images(flags, config);
  }
}

}  // namespace

Run add_eval(CommandLine& command) {
  const auto flags = std::make_shared<EvalFlags>();
  command.add("model", flags->model, "Directory of the model").type_name("DIR").required();
  command
      .add("--data", flags->data,
           "Data to evaluate on: a text; the prefix of two files of sentences; a file of lines label TAB text; a directory "
           "of images")
      .type_name("PATH")
      .required();
  add_positive(command, "--batch", flags->batch, "Segments, sentences, texts or images per batch");
  add_positive(command, "--threads", flags->threads, "Threads (default: chosen by torch)", kMaxThreads);
  add_positives(command, "--segments,--segment", flags->segments,
                "lm: tokens per segment, each read from empty memory; one evaluation per length (default: as trained)");
  add_names(command, "--memory", kMemories, flags->memory,
            "lm: memory reset at the start of each segment, or carried through the whole text (default: both, if the model can)");
  command
      .add("--dump-qkv", flags->dump,
           "lm: write queries, keys and values of the first segment to a .safetensors file for raffia approx, and stop")
      .type_name("FILE");
  command
      .add_parsed(
          "--layer", [flags](const std::string& text) { flags->layer = parse_integer("--layer", text); },
          "With --dump-qkv: only this layer, counted from 0, as q, k and v (default: all layers, as layers.0.q and so on)")
      .type_name("N");
  command.add("--source", flags->source, "translate: suffix of the source file (default: as trained)").type_name("TEXT");
  command.add("--target", flags->target, "translate: suffix of the target file (default: as trained)").type_name("TEXT");
  command
      .add("--label-column", flags->label_column,
           "classify: column of the label, a number from 1 or a name in the first line (default: as trained)")
      .type_name("TEXT");
  add_positive(command, "--text-column", flags->text_column, "classify: column of the text (default: as trained)");
  command.add_switch("--header", flags->header, "classify: skip the first line, which has column names");
  add_format_flags(command, flags->output);
  return [flags] { run(*flags); };
}

}  // namespace raffia::cli
