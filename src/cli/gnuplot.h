// Pictures are drawn by gnuplot, from scripts on its standard input.
#ifndef RAFFIA_CLI_GNUPLOT_H_
#define RAFFIA_CLI_GNUPLOT_H_

#include <string>

namespace raffia::cli {

// Throws Error, naming the flag and the package, where gnuplot is not installed.
void require_gnuplot(const std::string& flag);

// A string of a script, in which nothing is special; control characters, of which a newline would begin another command, become
// spaces.
std::string quoted(const std::string& text);

// The commands that draw `plot` as SVG and as PNG; height by width as in 960 x 600.
std::string on_both_terminals(const std::string& plot, int width = 960, int height = 600);

// Runs a script that ends in on_both_terminals() and puts the pictures to PREFIX.svg and PREFIX.png. gnuplot runs in a directory
// of its own and never hears of their names: they may hold any character. Its warnings are left out. Throws Error, naming the
// flag.
void run_gnuplot(const std::string& script, const std::string& flag, const std::string& prefix);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_GNUPLOT_H_
