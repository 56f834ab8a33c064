#include "cli/shared/train_plot.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/gnuplot.h"
#include "torch/train/log.h"

namespace raffia::internal::cli {

void plot_loss(const std::filesystem::path& directory, const std::string& metric) {
  const std::string valid = "valid_" + metric;
  std::string losses, evaluations;
  for (const auto& record : train::read_log(directory / "log.jsonl")) {
    const auto step = record.value("step", int64_t{0});
    const auto add = [&](std::string& points, const std::string& field) {
      const auto found = record.find(field);
      if (found != record.end() && found->is_number()) points += fmt::format("{} {}\n", step, found->get<double>());
    };
    add(losses, "loss");
    add(evaluations, valid);
  }
  if (losses.empty() || evaluations.empty()) return;
  const std::string prefix = (directory / "loss").string();
  // A metric that is no likelihood has an axis of its own.
  const bool is_loss = metric == "nll";
  const std::string plot = fmt::format(
      "set xlabel 'step'\nset ylabel 'nats'\nset grid lc rgb '#dddddd'\nset key top right\n{}"
      "plot $loss using 1:2 with lines lc rgb '#9ab8d8' title 'training loss', "
      "$valid using 1:2 {} with linespoints lw 2 pt 7 ps 0.6 lc rgb '#c0392b' title {}\n",
      is_loss ? "" : fmt::format("set ytics nomirror\nset y2tics\nset y2label {}\n", bench::quoted(metric)),
      is_loss ? "" : "axes x1y2", bench::quoted("validation " + metric));
  bench::run_gnuplot(
      fmt::format("$loss << EOD\n{}EOD\n$valid << EOD\n{}EOD\n{}", losses, evaluations, bench::on_both_terminals(plot)),
      "loss plot", prefix);
}

}  // namespace raffia::internal::cli
