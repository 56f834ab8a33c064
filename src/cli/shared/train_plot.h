// Plots loss against steps.
#ifndef RAFFIA_CLI_SHARED_TRAIN_PLOT_H_
#define RAFFIA_CLI_SHARED_TRAIN_PLOT_H_

#include <filesystem>
#include <string>

namespace raffia::internal::cli {

// Reads log.jsonl of the directory, writes loss.svg and loss.png beside it. `metric` is the name of the evaluation metric: "nll".
// Throws Error if gnuplot is not installed.
void plot_loss(const std::filesystem::path& directory, const std::string& metric);

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_TRAIN_PLOT_H_
