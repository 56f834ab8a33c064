#include "bench/decode_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <vector>

#include "bench/crossover_plot.h"
#include "bench/gnuplot.h"

namespace raffia::internal::bench {
namespace {

using Curve = std::vector<ModelRecord>;  // of one contender

bool same_contender(const ModelRecord& a, const ModelRecord& b) {
  return a.op == b.op && a.model == b.model && a.type == b.type && a.batch == b.batch && a.threads == b.threads;
}

std::vector<Curve> curves_of(std::span<const ModelRecord> records) {
  std::vector<Curve> curves;
  for (const ModelRecord& record : records) {
    if (record.depth == 0) continue;
    auto curve = std::ranges::find_if(curves, [&](const Curve& one) { return same_contender(one.front(), record); });
    if (curve == curves.end()) curve = curves.insert(curves.end(), Curve());
    curve->push_back(record);
  }
  for (Curve& curve : curves) std::ranges::sort(curve, {}, &ModelRecord::depth);
  return curves;
}

// The op and whatever else tells the curves of this plot apart.
std::string title_of(const ModelRecord& record, const std::vector<Curve>& curves) {
  const auto differs = [&](const auto& field) {
    return std::ranges::any_of(curves, [&](const Curve& curve) { return curve.front().*field != record.*field; });
  };
  std::string title = record.model ? *record.model : std::string(look_of(record.op).title);
  if (differs(&ModelRecord::type)) title += ", " + record.type;
  if (differs(&ModelRecord::batch)) title += fmt::format(", batch {}", record.batch);
  if (differs(&ModelRecord::threads)) title += fmt::format(", {} thread{}", record.threads, record.threads == 1 ? "" : "s");
  return title;
}

}  // namespace

void plot_decode(std::span<const ModelRecord> records, const std::string& prefix) {
  const std::vector<Curve> curves = curves_of(records);
  if (curves.empty()) return;
  std::ostringstream out;
  std::set<int64_t> depths;
  std::vector<std::string> speed, memory;
  for (size_t i = 0; i < curves.size(); ++i) {
    out << fmt::format("$curve{} << EOD\n", i);
    for (const ModelRecord& record : curves[i]) {
      depths.insert(record.depth);
      out << fmt::format("{} {} {}\n", record.depth, record.tokens_per_second, 1e-6 * static_cast<double>(record.state_bytes));
    }
    out << "EOD\n";
    const ModelRecord& like = curves[i].front();
    const std::string line = fmt::format("with linespoints lw 2.5 pt {} ps 0.8 dashtype {} lc rgb '{}'", 5 + 2 * (i % 4),
                                         like.threads > 1 ? "(8,4)" : "1", look_of(like.op).colour);
    speed.push_back(fmt::format("$curve{} using 1:2 {} title {}", i, line, quoted(title_of(like, curves))));
    memory.push_back(fmt::format("$curve{} using 1:3 {} notitle", i, line));
  }
  const ModelRecord& any = curves.front().front();
  out << "set logscale xy\n"
         "set xlabel 'tokens before'\n"
         "set grid xtics ytics lc rgb '#dddddd' lt 1 lw 1\n"
         "set border 3 lc rgb '#444444'\n"
         "set tics nomirror\n"
         "set format y '%g'\n"
         "set rmargin 5\n"
         "set key left bottom Left reverse noenhanced samplen 2\n"
      << fmt::format("set xtics ({}) rotate by -45\n", fmt::join(depths, ","))
      << fmt::format("set xrange [{}:{}]\n", static_cast<double>(*depths.begin()) / 1.3,
                     static_cast<double>(*depths.rbegin()) * 1.3);
  const std::string title =
      fmt::format("Decoding: {} layers, {} wide, {} heads, {} weights, {}", any.layers, any.width, any.heads, any.type, any.isa);
  const std::string plot = fmt::format(
      "set multiplot layout 1,2 title {} noenhanced\n"
      "set ylabel 'tokens per second'\n"
      "plot {}\n"
      "set ylabel 'memory of a session (MB)'\n"
      "plot {}\n"
      "unset multiplot\n",
      quoted(title), fmt::join(speed, ", "), fmt::join(memory, ", "));
  out << on_both_terminals(plot);
  run_gnuplot(out.str(), "--plot", prefix);
}

}  // namespace raffia::internal::bench
