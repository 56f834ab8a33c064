#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "bench/approx.h"
#include "bench/gnuplot.h"

namespace raffia::internal::bench {
namespace {

// Distinct to readers with any colour vision (Okabe and Ito).
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#B8A800"};

std::string spec_without_samples(const ApproxRecord& record) {
  std::string spec = record.spec;
  if (!record.samples) return spec;
  const std::string samples = fmt::format("samples={}", *record.samples);
  const size_t at = spec.find(samples);
  if (at == std::string::npos) return spec;
  // "lara:samples=64,mean=true" -> "lara:mean=true", "lara:samples=64" -> "lara"
  spec.erase(at, samples.size() + (at + samples.size() < spec.size() ? 1 : 0));
  if (spec.back() == ':' || spec.back() == ',') spec.pop_back();
  return spec;
}

std::string data_title(const ApproxRecord& record) {
  return record.scale ? fmt::format("{} {}", record.data, *record.scale) : record.data;
}

// Records that differ only in the number of samples.
struct ErrorCurve {
  std::string title;
  std::vector<const ApproxRecord*> points;
};

bool is_drawable(double value) { return std::isfinite(value) && value > 0; }

std::vector<ErrorCurve> error_curves(std::span<const ApproxRecord> records, bool several_data) {
  std::vector<ErrorCurve> curves;
  for (const ApproxRecord& record : records) {
    if (!is_drawable(record.mse)) continue;  // exact, or not a number: no place on a logarithmic axis
    std::string title = spec_without_samples(record);
    if (several_data) title += fmt::format(" ({})", data_title(record));
    auto curve = std::find_if(curves.begin(), curves.end(), [&title](const ErrorCurve& c) { return c.title == title; });
    if (curve == curves.end()) curve = curves.insert(curves.end(), ErrorCurve{.title = title});
    curve->points.push_back(&record);
  }
  return curves;
}

constexpr double kSampleMargin = 1.3;  // of the horizontal axis, a factor at each end

struct Axis {
  const char* label;
  bool has_tics_at_points;
  std::optional<double> (*of)(const ApproxRecord& record);
};

std::string title_of(std::span<const ApproxRecord> records, bool several_data) {
  const ApproxRecord& first = records.front();
  std::string title = first.causal ? "Causal attention" : "Attention";
  if (!several_data) title += ", " + data_title(first);
  return title + fmt::format(": error against exact {}, {} tokens, d = {}, {} seed{}", first.target, first.length, first.head_dim,
                             first.seeds, first.seeds == 1 ? "" : "s");
}

std::string script_of(std::span<const ApproxRecord> records, const Axis& axis) {
  const bool several_data = std::any_of(records.begin(), records.end(), [&records](const ApproxRecord& record) {
    return data_title(record) != data_title(records.front());
  });
  const std::vector<ErrorCurve> curves = error_curves(records, several_data);
  std::ostringstream out;
  std::vector<std::string> parts;
  std::set<double> places, errors;  // on both axes
  for (size_t i = 0; i < curves.size(); ++i) {
    std::vector<std::pair<double, const ApproxRecord*>> points;
    for (const ApproxRecord* record : curves[i].points) {
      if (const std::optional<double> x = axis.of(*record)) points.emplace_back(*x, record);
    }
    const char* colour = kColours[i % std::size(kColours)];
    if (points.empty()) {  // no samples: the same error for any number
      parts.push_back(
          fmt::format("{} with lines lw 2 lc rgb '{}' title {}", curves[i].points.front()->mse, colour, quoted(curves[i].title)));
      continue;
    }
    std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    out << fmt::format("$curve{} << EOD\n", i);
    for (const auto& [x, record] : points) {
      places.insert(x);
      errors.insert(record->mse);
      const double error = record->mse_stderr && std::isfinite(*record->mse_stderr) ? *record->mse_stderr : 0;
      // The lower end of a bar stays on the logarithmic axis.
      out << fmt::format("{} {} {} {}\n", x, record->mse, std::max(record->mse - error, record->mse / 10), record->mse + error);
    }
    out << "EOD\n";
    parts.push_back(fmt::format("$curve{} using 1:2:3:4 with yerrorbars lw 1 ps 0 lc rgb '{}' notitle", i, colour));
    parts.push_back(fmt::format("$curve{} using 1:2 with linespoints lw 2.5 pt {} ps 0.8 lc rgb '{}' title {}", i,
                                5 + 2 * (i % 4), colour, quoted(curves[i].title)));
  }
  std::map<std::string, double> bases;
  for (const ApproxRecord& record : records) bases.emplace(data_title(record), record.base_mse);
  for (const auto& [data, base] : bases) {
    if (!is_drawable(base)) continue;
    errors.insert(base);
    parts.push_back(fmt::format("{} with lines dashtype (4,4) lw 1.5 lc rgb '#888888' title {}", base,
                                quoted(several_data ? fmt::format("mean of values ({})", data) : "mean of values")));
  }
  if (parts.empty()) parts.emplace_back("NaN notitle");
  if (places.empty()) places = {1, 1000};
  if (errors.empty()) errors = {1e-6, 1};
  out << "set logscale xy\n"
         "set ylabel 'mean squared error'\n"
         "set grid xtics ytics lc rgb '#dddddd' lt 1 lw 1\n"
         "set border 3 lc rgb '#444444'\n"
         "set tics nomirror\n"
         "set key outside right top Left reverse noenhanced samplen 2\n"
         "set format y '%.0e'\n"
      << fmt::format("set xrange [{}:{}]\nset yrange [{}:{}]\n", *places.begin() / kSampleMargin,
                     *places.rbegin() * kSampleMargin, *errors.begin() / 2, *errors.rbegin() * 2)
      << (axis.has_tics_at_points ? fmt::format("set xtics ({})\n", fmt::join(places, ",")) : "set format x '%g'\n")
      << "set xlabel " << quoted(axis.label) << '\n'
      << "set title " << quoted(title_of(records, several_data)) << " noenhanced\n"
      << on_both_terminals(fmt::format("plot {}\n", fmt::join(parts, ", ")), 1080, 600);
  return out.str();
}

}  // namespace

void plot_approx(std::span<const ApproxRecord> records, const std::string& prefix) {
  if (records.empty()) return;
  constexpr Axis kSamples = {"samples", true, [](const ApproxRecord& r) {
                               return r.samples && *r.samples > 0 ? std::optional(static_cast<double>(*r.samples)) : std::nullopt;
                             }};
  constexpr Axis kTime = {"time (ms)", false, [](const ApproxRecord& r) { return std::optional(1e3 * r.seconds); }};
  run_gnuplot(script_of(records, kSamples), "--plot", prefix);
  run_gnuplot(script_of(records, kTime), "--plot", prefix + "-time");
}

void plot_matrices(std::span<const AttentionMatrix> matrices, const std::string& prefix) {
  constexpr float kFloor = 1e-6F;  // weights below it, and negative ones, are white
  std::ostringstream out;
  for (size_t i = 0; i < matrices.size(); ++i) {
    out << fmt::format("$matrix{} << EOD\n", i);
    const int64_t length = matrices[i].length;
    for (int64_t row = 0; row < length; ++row) {
      for (int64_t column = 0; column < length; ++column) {
        const float weight = matrices[i].weights[static_cast<size_t>(row * length + column)];
        out << fmt::format("{:.3g} ", weight > kFloor ? weight : kFloor);
      }
      out << '\n';
    }
    out << "EOD\n";
  }
  const int count = static_cast<int>(matrices.size());
  const int columns = std::min(count, 4), rows = (count + columns - 1) / columns;
  std::string plot = fmt::format("set multiplot layout {},{}\n", rows, columns);
  for (int i = 0; i < count; ++i) {
    plot += fmt::format("set title {} noenhanced\nplot $matrix{} matrix with image notitle\n",
                        quoted(matrices[static_cast<size_t>(i)].title), i);
  }
  plot += "unset multiplot\n";
  out << "set logscale cb\n"
      << fmt::format("set cbrange [{}:1]\n", kFloor)
      << "set palette defined (0 '#ffffff', 1 '#c6dbef', 2 '#56B4E9', 3 '#0072B2', 4 '#08204a')\n"
         "set format cb '10^{%L}'\n"
         "set size ratio -1\n"
         "set yrange [*:*] reverse\n"
         "set autoscale fix\n"
         "unset tics\n"
         "set cbtics\n"
      << on_both_terminals(plot, 360 * columns, 330 * rows);
  run_gnuplot(out.str(), "--show-matrix", prefix);
}

}  // namespace raffia::internal::bench
