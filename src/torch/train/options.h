// The options of a training run. One table lists them all: command line flags, keys of a TOML file and fields of a checkpoint
// have the same names, with hyphens.
#ifndef RAFFIA_TORCH_TRAIN_OPTIONS_H_
#define RAFFIA_TORCH_TRAIN_OPTIONS_H_

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/message.h"
#include "raffia/error.h"
#include "raffia/estimator.h"
#include "raffia/model_config.h"

namespace raffia::internal::train {

class Group;

enum class DataSource : uint8_t {
  files,
  recall,  // made up: associative recall, for a language model
};

// What `raffia train KIND` trains: a model for a task, and where its examples come from. Checkpoints have the name of the kind.
struct TrainKind {
  Task task = Task::lm;
  DataSource data = DataSource::files;
  bool operator==(const TrainKind&) const = default;
};
constexpr TrainKind kRecall = {Task::lm, DataSource::recall};
std::string_view name_of(TrainKind kind);  // of the task, or of the data if they are made up

// The defaults work for 1 to 20 MB of text on two cores.
struct TrainOptions {
  TrainKind kind = {};

  // Files.
  std::string data = {};   // translate: the common prefix of both files; image: a directory
  std::string valid = {};  // empty: a part of `data`
  std::string test = {};   // empty: none
  std::string out = {};    // model directory
  std::string init = {};   // lm: model directory to start from; empty: a new model
  double valid_share = 0.05;
  std::string tokenizer = "auto";

  // Model.
  std::string estimator = "rfa_gate";  // one, or one per layer separated by ';'
  std::string cross = "softmax";
  std::string positions = "auto";
  int64_t layers = 4, width = 256, heads = 4, kv_heads = 0, ffn = 0, conv = 0, max_length = 0;
  std::string norm = "layer", feed_forward = "gelu";
  bool no_bias = false, untied = false;
  int64_t pool = -1;  // -1: depends on stateful
  bool head_norm = false, fixed_sigma = false;
  double span_min = 0, span_max = 0;
  double dropout = 0;

  // Steps.
  int64_t steps = 0, epochs = 0;                     // both 0: 1000 steps
  int64_t batch = 8, segment = 256, accumulate = 1;  // batches and lengths suit lm: see default_options
  std::string stateful = "auto";
  double lr = 0;  // 0: depends on the width
  double warmup = 1.0 / 15, final_lr = 0.05, weight_decay = 0.05, beta1 = 0.9, beta2 = 0.98, clip = 1, label_smoothing = 0;
  uint64_t seed = 1;

  // Translation, classification, images, recall.
  std::string source = "en", target = "de";
  bool pairs = false, header = false;
  std::string label_column = "1";  // number or name
  int64_t text_column = 0;
  int64_t classes = 0, patch = 4;
  int64_t recall_pairs = 16, recall_queries = 16, recall_alphabet = 256;
  std::string recall_distances = "16,64,256", recall_eval_distances = "16,64,256,1024,4096";

  // Evaluation, checkpoints and processes.
  int64_t eval_every = 0, checkpoint_every = 0, log_every = 10;  // 0: ten times a run
  int64_t keep = 3, patience = 0, threads = 0;
  std::string parallel = "data";  // what is divided among processes: rows of batches (data), or tokens of sequences (sequence)
  int64_t rank_timeout = 1800;    // seconds
  bool resume = false;

  Group* group = nullptr;  // the processes of this run; null: a single process. Not in the table: it does not change the result
};

// The defaults of a kind: its sizes, and an estimator with the form it needs.
TrainOptions default_options(TrainKind kind);

// Whether a resumed run may use another value.
enum class OnResume : uint8_t {
  same,    // an error: it would be a different run
  noted,   // accepted, with a note
  silent,  // allowed: does not change the weights
};

constexpr unsigned only(TrainKind kind) {
  constexpr unsigned kAboveTasks = 16;
  return 1U << (kind.data == DataSource::files ? static_cast<unsigned>(kind.task)
                                               : kAboveTasks + static_cast<unsigned>(kind.data));
}
constexpr unsigned kEveryKind = ~0U;

using OptionField = std::variant<std::string TrainOptions::*, int64_t TrainOptions::*, uint64_t TrainOptions::*,
                                 double TrainOptions::*, bool TrainOptions::*>;

struct OptionInfo {
  const char* name;  // --name, name = ... in a file
  OptionField field;
  const char* description;
  double min = 0, max = 1e9;  // of numbers
  OnResume on_resume = OnResume::same;
  unsigned kinds = kEveryKind;
  bool may_differ_by_rank = false;  // ranks may have different values: paths of files, and threads
};

std::span<const OptionInfo> option_table();
const OptionInfo* find_option(TrainKind kind, std::string_view name);  // null: the kind has no such option

// The value as the text of a flag.
std::string value_text(const TrainOptions& options, const OptionInfo& info);

// Throws InvalidArgument "'abc' is not an integer"; the caller says which option.
void set_from_text(TrainOptions& options, const OptionInfo& info, const std::string& text);

// parse(text), for options whose text has a meaning of its own. Throws InvalidArgument, which begins with "--name: ".
template <typename Parse>
auto parse_option(std::string_view name, std::string_view text, const Parse& parse) {
  try {
    return parse(text);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--{}: {}", name, without_origin(error.what())));
  }
}
Estimator parse_estimator_option(std::string_view name, std::string_view text);

// Reads a TOML file into `options`. Keys are options of its kind, at the top or in any table. Throws InvalidArgument for a key or
// value that is not valid as a flag, FormatError for invalid TOML; both begin with "file:line:".
void read_toml(TrainOptions& options, const std::filesystem::path& path);

// All options of the kind by name, and back. Throws FormatError that names `where` and the field.
nlohmann::ordered_json to_json(const TrainOptions& options);
void read_json(TrainOptions& options, const nlohmann::ordered_json& json, std::string_view where);

// Compares values: what a resumed run must not change, and what it should report.
struct OptionChange {
  const OptionInfo* info;
  std::string before, now;
};
std::vector<OptionChange> changes(const TrainOptions& before, const TrainOptions& now);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_OPTIONS_H_
