// raffia approx: the error of estimators against exact attention, and their speed.
#include "bench/approx.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>

#include "bench/gnuplot.h"
#include "cli/shared/command.h"
#include "cli/shared/estimator_flags.h"
#include "cli/shared/flags.h"
#include "cli/shared/progress.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

struct ApproxFlags {
  bench::ApproxOptions options;
  std::string plot, matrix;
  FormatFlags output;
};

// --plot f.svg and --plot f mean the same files.
std::string prefix_of(const std::string& path) {
  for (const std::string_view ending : {".svg", ".png"}) {
    if (path.size() > ending.size() && path.ends_with(ending)) return path.substr(0, path.size() - ending.size());
  }
  return path;
}

void run(ApproxFlags& flags) {
  flags.options.matrices = !flags.matrix.empty();
  if (!flags.plot.empty()) bench::require_gnuplot("--plot");
  if (!flags.matrix.empty()) bench::require_gnuplot("--show-matrix");
  bench::ApproxResults results;
  try {
    results = with_progress([&](Progress& progress) { return bench::measure_approx(flags.options, progress); });
  } catch (const InvalidArgument& error) {  // an estimator whose settings do not fit each other or the data
    throw UsageError(error.what());
  }
  if (!flags.matrix.empty()) bench::plot_matrices(results.matrices, prefix_of(flags.matrix));
  bench::print_records(results.records, flags.output.format(), std::cout);
  if (!flags.plot.empty()) bench::plot_approx(results.records, prefix_of(flags.plot));
}

double parse_real(const std::string& flag, const std::string& text, bool positive) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || (positive && value <= 0)) {
    throw FlagError(flag, fmt::format("'{}' is not a {}number", text, positive ? "positive " : ""));
  }
  return value;
}

}  // namespace

Run add_approx(CommandLine& command) {
  const auto flags = std::make_shared<ApproxFlags>();
  command
      .add_values("--input", flags->options.input, 3,
                  "q.npy k.npy v.npy, or one .safetensors file: [T, D], [T, H, D] or [B, T, H, D]")
      .type_name("FILE");
  command
      .add_parsed(
          "--names", [flags](const std::string& text) { flags->options.names = split_list("--names", text); },
          "Names of q, k and v in the .safetensors file")
      .type_name("LIST")
      .default_text("q,k,v");
  add_names(command, "--data", bench::kDataSets, flags->options.data, "Generated data: iid, walk, rw").excludes("--input");
  command
      .add_parsed(
          "--scale",
          [flags](const std::string& text) {
            flags->options.scales.clear();
            for (const std::string& value : split_list("--scale", text)) {
              flags->options.scales.push_back(parse_real("--scale", value, true));
            }
          },
          "Scale of generated queries and keys; larger values give sharper attention")
      .type_name("LIST")
      .default_text("1")
      .excludes("--input");
  add_positive(command, "--length", flags->options.length, "Tokens of generated data").excludes("--input");
  add_positive(command, "--head-dim", flags->options.head_dim, "d of generated data").excludes("--input");
  command
      .add_parsed(
          "--estimators",
          [flags](const std::string& text) {
            for (const std::string& spec : split_estimators("--estimators", text)) {
              (void)parse_estimator_of("--estimators", spec);
              flags->options.estimators.push_back(spec);
            }
          },
          "Names or settings: rfa:log=true,lara:samples=64,mean=true,eva (default: rfa with positive features, lara, eva, ra)")
      .type_name("LIST");
  command
      .add_repeated(
          "--estimator",
          [flags](const std::string& spec) {
            (void)parse_estimator_of("--estimator", spec);
            flags->options.estimators.push_back(spec);
          },
          "One estimator; may be repeated")
      .type_name("SPEC");
  add_positives(command, "--samples", flags->options.samples, "Numbers of samples, for estimators without samples=N");
  add_positive(command, "--seeds", flags->options.seeds, "Number of runs, each with different data and random draws");
  add_seed(command, "--seed", flags->options.seed, "The first seed");
  command.add_switch("--causal", flags->options.causal, "Causal attention: queries see earlier tokens only");
  add_name(
      command, "--target", bench::kTargets, flags->options.target,
      "The exact attention to compare with: softmax, or gaussian (the kernel of unit vectors, which trig features estimate)");
  command
      .add_parsed(
          "--gate-logit",
          [flags](const std::string& text) { flags->options.gate_logit = parse_real("--gate-logit", text, false); },
          "Gate of rfa_gate and hybrid, before the sigmoid")
      .type_name("X")
      .default_text("6");
  add_positive(command, "--threads", flags->options.threads, "Threads (default: all CPUs)", kMaxThreads);
  command
      .add("--plot", flags->plot,
           "Write PREFIX.svg/.png: error against samples, and PREFIX-time.svg/.png: against time (needs gnuplot)")
      .type_name("PREFIX");
  command
      .add("--show-matrix", flags->matrix,
           "Write PREFIX.svg/.png: the attention matrices of the estimators and of exact attention (needs gnuplot)")
      .type_name("PREFIX");
  add_format_flags(command, flags->output);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
