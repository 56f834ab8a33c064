#include "bench/crossover_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "bench/gnuplot.h"
#include "raffia/estimator.h"

namespace raffia::internal::bench {
namespace {

// Colours distinct to readers with any colour vision (Okabe and Ito).
constexpr Look kLooks[] = {{"softmax", "softmax", "#444444"}, {"rfa", "RFA", "#0072B2"},   {"rfa_gate", "RFA-Gate", "#D55E00"},
                           {"hybrid", "hybrid", "#CC79A7"},   {"lara", "LARA", "#009E73"}, {"ra", "RA", "#56B4E9"},
                           {"eva", "EVA", "#E69F00"},         {"", "model", "#B8A800"}};

struct TimeCurve {
  Record like;  // its first record
  std::vector<CurvePoint> points;
};

bool same_curve(const Record& a, const Record& b) {
  return a.op == b.op && a.pass == b.pass && a.input == b.input && a.causal == b.causal && a.threads == b.threads &&
         a.segment == b.segment;
}

std::vector<TimeCurve> time_curves(std::span<const Record> records) {
  std::vector<TimeCurve> curves;
  for (const Record& record : records) {
    auto curve = std::find_if(curves.begin(), curves.end(), [&](const TimeCurve& c) { return same_curve(c.like, record); });
    if (curve == curves.end()) curve = curves.insert(curves.end(), TimeCurve{.like = record});
    curve->points.push_back({static_cast<double>(record.length), record.seconds});
  }
  for (TimeCurve& curve : curves) {
    std::sort(curve.points.begin(), curve.points.end(), [](const auto& a, const auto& b) { return a.length < b.length; });
  }
  return curves;
}

template <typename Get>
bool differs(const std::vector<TimeCurve>& curves, const Get& get) {
  return std::any_of(curves.begin(), curves.end(),
                     [&](const TimeCurve& curve) { return get(curve.like) != get(curves.front().like); });
}

std::string threads_text(int64_t threads) { return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"); }

// The op and whatever else tells the curves of this plot apart.
std::string curve_title(const TimeCurve& curve, const std::vector<TimeCurve>& curves) {
  const Record& record = curve.like;
  std::vector<std::string> parts;
  if (differs(curves, [](const Record& r) { return r.causal; })) parts.emplace_back(record.causal ? "causal" : "full");
  if (record.map && differs(curves, [](const Record& r) { return r.map ? r.input : "qk"; })) {
    parts.emplace_back(record.input == "qk" ? "map inside" : "features given");
  }
  if (differs(curves, [](const Record& r) { return r.pass; })) parts.push_back(record.pass);
  if (differs(curves, [](const Record& r) { return r.threads; })) parts.push_back(threads_text(record.threads));
  if (record.segment && differs(curves, [](const Record& r) { return r.segment.value_or(0); })) {
    parts.push_back(fmt::format("segment {}", *record.segment));
  }
  const std::string title(look_of(record.op).title);
  return parts.empty() ? title : fmt::format("{} ({})", title, fmt::join(parts, ", "));
}

std::string plot_title(const std::vector<TimeCurve>& curves) {
  const Record& record = curves.front().like;
  const auto linear =
      std::find_if(curves.begin(), curves.end(), [](const TimeCurve& curve) { return curve.like.map.has_value(); });
  std::string title = "Attention";
  if (!differs(curves, [](const Record& r) { return r.causal; })) title = record.causal ? "Causal attention" : "Full attention";
  if (!differs(curves, [](const Record& r) { return r.pass; })) title += ", " + record.pass;
  title += fmt::format(": batch {}, {} heads, d = {}", record.batch, record.heads, record.head_dim);
  if (linear != curves.end()) title += fmt::format(", {} map, F = {}", *linear->like.map, *linear->like.features);
  title += fmt::format(", {}, {}", record.dtype, record.isa);
  if (!differs(curves, [](const Record& r) { return r.threads; })) title += ", " + threads_text(record.threads);
  return title;
}

constexpr double kLengthMargin = 1.15;  // of the axis of lengths, a factor at each end

struct Mark {
  double length = 0;
  double seconds = 0;
  std::string label, colour;
};

double interpolate(std::span<const CurvePoint> points, double length) {
  const auto right = std::find_if(points.begin() + 1, points.end() - 1, [&](const CurvePoint& p) { return p.length >= length; });
  const auto left = right - 1;
  const double share = std::log(length / left->length) / std::log(right->length / left->length);
  return left->seconds * std::pow(right->seconds / left->seconds, share);
}

std::vector<Mark> marks_of(const std::vector<TimeCurve>& curves) {
  std::vector<Mark> marks;
  for (const TimeCurve& softmax : curves) {
    if (softmax.like.op != "softmax") continue;
    for (const TimeCurve& other : curves) {
      const bool comparable = other.like.op != "softmax" && other.like.causal == softmax.like.causal &&
                              other.like.pass == softmax.like.pass && other.like.threads == softmax.like.threads;
      if (!comparable) continue;
      if (const std::optional<double> length = crossover(softmax.points, other.points)) {
        marks.push_back({.length = *length,
                         .seconds = interpolate(softmax.points, *length),
                         .label = fmt::format("{}: crossover at {:.0f}", curve_title(other, curves), *length),
                         .colour = look_of(other.like.op).colour});
      }
    }
  }
  std::sort(marks.begin(), marks.end(), [](const Mark& a, const Mark& b) { return a.length < b.length; });
  return marks;
}

std::string script_of(const std::vector<TimeCurve>& curves) {
  std::ostringstream out;
  for (size_t i = 0; i < curves.size(); ++i) {
    out << fmt::format("$curve{} << EOD\n", i);
    for (const CurvePoint& point : curves[i].points) out << fmt::format("{} {}\n", point.length, 1e3 * point.seconds);
    out << "EOD\n";
  }
  out << "set logscale xy\n"
         "set xlabel 'length (tokens)'\n"
         "set ylabel 'time (ms)'\n"
         "set grid xtics ytics lc rgb '#dddddd' lt 1 lw 1\n"
         "set border 3 lc rgb '#444444'\n"
         "set tics nomirror\n"
         "set key left top Left reverse noenhanced samplen 2\n"
         "set format y '%g'\n"
      << "set title " << quoted(plot_title(curves)) << " noenhanced\n";
  std::set<double> lengths, times;
  for (const TimeCurve& curve : curves) {
    for (const CurvePoint& point : curve.points) {
      lengths.insert(point.length);
      times.insert(1e3 * point.seconds);
    }
  }
  const double bottom = *times.begin() / 2;
  out << fmt::format("set xtics ({})\n", fmt::join(lengths, ","))
      << fmt::format("set xrange [{}:{}]\n", *lengths.begin() / kLengthMargin, *lengths.rbegin() * kLengthMargin)
      << fmt::format("set yrange [{}:{}]\n", bottom, *times.rbegin() * 2);

  // Their labels stand one above the other at the right, where the curves leave room.
  int row = 0;
  for (const Mark& mark : marks_of(curves)) {
    out << fmt::format("set arrow from {0},{1} to {0},{2} nohead dashtype (4,4) lw 1.5 lc rgb '{3}'\n", mark.length, bottom,
                       1e3 * mark.seconds, mark.colour)
        << fmt::format("set label {} noenhanced at graph 0.98, graph {} right textcolor rgb '{}'\n", quoted(mark.label),
                       0.05 + 0.05 * row++, mark.colour);
  }

  std::vector<std::string> parts;
  for (size_t i = 0; i < curves.size(); ++i) {
    const Record& like = curves[i].like;
    const char* dash = like.input == "features" ? "(8,4)" : "1";
    parts.push_back(fmt::format("$curve{} using 1:2 with linespoints lw 2.5 pt {} ps 0.8 dashtype {} lc rgb '{}' title {}", i,
                                5 + 2 * (i % 4), dash, look_of(like.op).colour, quoted(curve_title(curves[i], curves))));
  }
  const std::string plot = fmt::format("plot {}\n", fmt::join(parts, ", "));
  out << on_both_terminals(plot);
  return out.str();
}

}  // namespace

Look look_of(std::string_view op) {
  // Settings follow a colon; a model with several kinds has none of its own.
  const std::string_view kind =
      op.find_first_of(" ;") == std::string_view::npos ? op.substr(0, op.find(':')) : std::string_view();
  const auto* known = std::find_if(std::begin(kLooks), std::end(kLooks), [kind](const Look& look) { return look.op == kind; });
  if (known != std::end(kLooks)) return *known;
  Look look = *(std::end(kLooks) - 1);
  for (const EstimatorKind one : estimator_kinds()) {
    if (name_of(one) == kind) look.title = name_of(one);
  }
  return look;
}

std::optional<double> crossover(std::span<const CurvePoint> softmax, std::span<const CurvePoint> other) {
  std::optional<double> found;
  std::optional<std::pair<double, double>> before;  // log length, log of softmax time / other time
  for (const CurvePoint& point : other) {
    const auto same = std::find_if(softmax.begin(), softmax.end(), [&](const CurvePoint& p) { return p.length == point.length; });
    if (same == softmax.end()) continue;
    const double x = std::log(point.length);
    const double gain = std::log(same->seconds / point.seconds);
    if (before && before->second < 0 && gain >= 0) {
      found = std::exp(before->first + (x - before->first) * before->second / (before->second - gain));
    }
    before = {x, gain};
  }
  return found;
}

void plot_crossover(std::span<const Record> records, const std::string& prefix) {
  if (records.empty()) return;
  run_gnuplot(script_of(time_curves(records)), "--plot", prefix);
}

}  // namespace raffia::internal::bench
