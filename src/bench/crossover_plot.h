// Plots time against length with gnuplot.
#ifndef RAFFIA_BENCH_CROSSOVER_PLOT_H_
#define RAFFIA_BENCH_CROSSOVER_PLOT_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/records.h"

namespace raffia::internal::bench {

// The colour and line of an estimator in all plots.
struct Look {
  std::string_view op, title;
  const char* colour;
};
Look look_of(std::string_view op);  // all mixtures of estimators look the same

struct CurvePoint {
  double length = 0;
  double seconds = 0;
};

// The length from which `other` is faster than `softmax` (both by growing length, same lengths), straight lines assumed between
// points of the log-log plot. Nullopt if the order does not change from slower to faster.
std::optional<double> crossover(std::span<const CurvePoint> softmax, std::span<const CurvePoint> other);

// Writes PREFIX.svg and PREFIX.png: a curve per contender, crossovers with softmax marked.
void plot_crossover(std::span<const Record> records, const std::string& prefix);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_CROSSOVER_PLOT_H_
