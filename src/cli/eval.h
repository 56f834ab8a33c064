// Common to the parts of `raffia eval`: flags, and an evaluation for each task.
#ifndef RAFFIA_CLI_EVAL_H_
#define RAFFIA_CLI_EVAL_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "raffia/model_config.h"
#include "torch/nn/models.h"
#include "torch/train/evaluate.h"

namespace raffia::cli {

enum class Memory : uint8_t { reset, carried };

inline constexpr Named<Memory> kMemories[] = {{"reset", Memory::reset}, {"carried", Memory::carried}};

struct EvalFlags {
  std::filesystem::path model, data;
  int64_t batch = 8, threads = 0;
  FormatFlags output;

  // Language models.
  std::vector<int64_t> segments = {};  // none: as trained
  std::vector<Memory> memory = {};     // none: both, where the memory of the model can be carried
  std::filesystem::path dump;
  std::optional<int64_t> layer;

  // Translators: endings of both files; none: as trained.
  std::string source, target;

  // Classifiers of texts; none: as trained.
  std::string label_column;
  std::optional<int64_t> text_column;
  bool header = false;
};

// The training options saved beside the model; defaults if there is no such file.
struct TrainedWith {
  int64_t segment = 256;
  std::string source = "en", target = "de";
  std::string label_column = "1";
  int64_t text_column = 0;  // 0: the one after the label
};
TrainedWith trained_with(const std::filesystem::path& model);

// Throws Error if the loss is not finite, which can happen even with finite weights.
void require_finite_nll(double nll);

// A progress bar over several parts, each of which counts from 0.
class PartsProgress {
 public:
  PartsProgress(int64_t parts, int64_t each) : bar_(static_cast<double>(parts * each)) {}

  train::OnProgress begin(const std::string& what) {
    bar_.begin(what);
    done_ = 0;
    return [this](int64_t done, int64_t) {
      bar_.advance(static_cast<double>(done - done_));
      done_ = done;
    };
  }

 private:
  Progress bar_;
  int64_t done_ = 0;
};

// Each prints its records on stdout. Throws UsageError if flags do not match the model.
void evaluate_lm(const EvalFlags& flags, const ModelConfig& config);
void evaluate_translator(const EvalFlags& flags, const ModelConfig& config);
void evaluate_classifier(const EvalFlags& flags, const ModelConfig& config);
void evaluate_images(const EvalFlags& flags, const ModelConfig& config);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_EVAL_H_
