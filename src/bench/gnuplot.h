// Pictures are drawn by gnuplot, from scripts on its standard input.
#ifndef RAFFIA_BENCH_GNUPLOT_H_
#define RAFFIA_BENCH_GNUPLOT_H_

#include <string>

namespace raffia::internal::bench {

// Throws Error, which names the flag and the package, if gnuplot is not installed.
void require_gnuplot(const std::string& flag);

// A quoted string for a script, without special characters; control characters become spaces (a newline would start another
// command).
std::string quoted(const std::string& text);

// The commands that draw `plot` as SVG and as PNG; height by width as in 960 x 600.
std::string on_both_terminals(const std::string& plot, int width = 960, int height = 600);

// Runs a script that ends in on_both_terminals() and writes the pictures to PREFIX.svg and PREFIX.png. gnuplot runs in a
// temporary directory and does not get these names, so they may contain any character. Its warnings are not shown. Throws Error,
// which names the flag.
void run_gnuplot(const std::string& script, const std::string& flag, const std::string& prefix);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_GNUPLOT_H_
