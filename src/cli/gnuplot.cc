#include "cli/gnuplot.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "raffia/error.h"

namespace raffia::cli {

void require_gnuplot(const std::string& flag) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (access((std::filesystem::path(directory) / "gnuplot").c_str(), X_OK) == 0) return;
  }
  throw Error(fmt::format("{}: gnuplot is not installed; it is in the package gnuplot-nox (apt-get install gnuplot-nox)", flag));
}

// In gnuplot's single quotes nothing but the quote itself is special.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c);
  return result + "'";
}

std::string on_both_terminals(const std::string& plot, const std::string& prefix, int width, int height) {
  return fmt::format(
      "set terminal svg size {},{} font 'Helvetica,15' background rgb 'white' dynamic\nset output {}\n{}"
      "set terminal pngcairo size {},{} font 'Sans,19' linewidth 1.5 pointscale 1.5\nset output {}\n{}set output\n",
      width, height, quoted(prefix + ".svg"), plot, width * 3 / 2, height * 3 / 2, quoted(prefix + ".png"), plot);
}

void run_gnuplot(const std::string& script, const std::string& flag, const std::string& prefix) {
  require_gnuplot(flag);
  FILE* gnuplot = popen("gnuplot", "w");
  if (gnuplot == nullptr) throw IoError(fmt::format("{}: gnuplot could not be started", flag));
  const bool is_written = std::fwrite(script.data(), 1, script.size(), gnuplot) == script.size();
  if (pclose(gnuplot) != 0 || !is_written) {
    throw IoError(fmt::format("{}: gnuplot could not write {}.svg and {}.png", flag, prefix, prefix));
  }
}

}  // namespace raffia::cli
