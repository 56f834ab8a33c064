// The options of a run from all sources, and the rules for a resumed run.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "torch/train/checkpoint.h"
#include "torch/train/init.h"
#include "torch/train/trainer.h"

namespace raffia::internal::train {
namespace {

// "auto" and -1 leave the choice to the task; a resumed run keeps the earlier choice.
bool leaves_open(const std::string& text) { return text == "auto" || text == "-1"; }

TrainOptions saved_options(TrainKind kind, const std::filesystem::path& path) {
  TrainOptions options = default_options(kind);
  read_json(options, parse_ordered_json(read_file(path, kMaxBytesOfRunJson), path.string()), path.string());
  return options;
}

void apply(TrainOptions& options, const std::string& name, const std::string& text) {
  const OptionInfo* info = find_option(options.kind, name);
  require(info != nullptr, "--{} is not an option of raffia train {}", name, name_of(options.kind));
  try {
    set_from_text(options, *info, text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--{}: {}", name, error.what()));
  }
}

// Earlier choices are kept unless another value is requested.
void keep_choices(TrainOptions& options, const TrainOptions& saved) {
  for (const OptionInfo& info : option_table()) {
    if ((info.kinds & only(options.kind)) == 0 || !leaves_open(value_text(options, info))) continue;
    set_from_text(options, info, value_text(saved, info));
  }
}

}  // namespace

bool RunFiles::exist() const {
  return std::filesystem::exists(weights()) || std::filesystem::exists(config()) || std::filesystem::exists(options());
}

bool RunFiles::can_resume() const { return std::filesystem::exists(options()); }

TrainOptions resolve_options(TrainKind kind, const std::string& config, const std::map<std::string, std::string>& flags,
                             bool resume, Observer& observer) {
  TrainOptions options = default_options(kind);
  // --out is needed first: the saved options are there.
  if (!config.empty()) read_toml(options, config);
  if (const auto out = flags.find("out"); out != flags.end()) options.out = out->second;
  if (const auto init = flags.find("init"); init != flags.end()) options.init = init->second;
  require(!options.out.empty(), "--out is missing: the model directory to write");

  const RunFiles files{options.out};
  require(resume || !files.exist(),
          "--out: {} already contains a model: --resume continues its run, another --out starts a new one", options.out);
  const bool goes_on = resume && files.can_resume();
  require(goes_on || !std::filesystem::exists(files.weights()),
          "--out: {} contains a model that was not trained here: there is nothing to resume", options.out);
  const std::string init = options.init;
  options = goes_on ? saved_options(kind, files.options()) : default_options(kind);
  if (!goes_on && !init.empty()) {
    options.init = init;
    take_model(options);
  }
  const TrainOptions saved = options;
  if (!config.empty()) read_toml(options, config);
  for (const auto& [name, text] : flags) apply(options, name, text);
  options.out = files.directory.string();
  options.resume = goes_on;
  if (!goes_on && init.empty()) return options;

  keep_choices(options, saved);
  options.init = saved.init;  // a resumed run keeps its --init
  if (!goes_on) {
    require_same_model(saved, options);
    return options;
  }
  for (const OptionChange& change : changes(saved, options)) {
    require(
        change.info->on_resume != OnResume::same,
        "--{} is {}, but the run in {} was started with {}: a resumed run keeps its settings; start a new run in another --out",
        change.info->name, change.now, options.out, change.before);
    observer.note(fmt::format("--{} changes from {} to {}", change.info->name, change.before, change.now));
  }
  return options;
}

}  // namespace raffia::internal::train
