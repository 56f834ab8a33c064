#include "bench/gnuplot.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "io/formats/file.h"
#include "raffia/error.h"

namespace raffia::internal::bench {
namespace {

// Files of the directory that gnuplot runs in.
constexpr const char *kScript = "script", *kSaid = "said", *kSvg = "picture.svg", *kPng = "picture.png";

// Runs gnuplot with the script there; false if it failed.
bool run_in(const std::filesystem::path& directory) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, kScript, O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, kSaid, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  std::string name = "gnuplot";
  char* const arguments[] = {name.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, name.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw IoError(fmt::format("gnuplot cannot be started: {}", std::strerror(error)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string first_line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  while (line.empty() && std::getline(file, line)) continue;
  return line;
}

}  // namespace

void require_gnuplot(const std::string& flag) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path == nullptr ? "" : path);
  for (std::string directory; std::getline(directories, directory, ':');) {
    if (access((std::filesystem::path(directory) / "gnuplot").c_str(), X_OK) == 0) return;
  }
  throw Error(fmt::format("{}: gnuplot is not installed (apt-get install gnuplot-nox)", flag));
}

// In gnuplot's single quotes only the quote itself is special, and the end of a line ends the string.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    result += c == '\'' ? "''" : std::string(1, byte < 0x20 || byte == 0x7F ? ' ' : c);
  }
  return result + "'";
}

std::string on_both_terminals(const std::string& plot, int width, int height) {
  return fmt::format(
      "set terminal svg size {},{} font 'Helvetica,15' background rgb 'white' dynamic\nset output '{}'\n{}"
      "set terminal pngcairo size {},{} font 'Sans,19' linewidth 1.5 pointscale 1.5\nset output '{}'\n{}set output\n",
      width, height, kSvg, plot, width * 3 / 2, height * 3 / 2, kPng, plot);
}

void run_gnuplot(const std::string& script, const std::string& flag, const std::string& prefix) {
  require_gnuplot(flag);
  const auto refuse = [&](const std::string& why) {
    throw IoError(fmt::format("{}: {}.svg and {}.png cannot be drawn: {}", flag, prefix, prefix, why));
  };
  try {
    const TemporaryEntry place(std::filesystem::path(prefix).parent_path(), TemporaryEntry::Kind::directory);
    File(place.path() / kScript, O_WRONLY | O_CREAT | O_EXCL, "create").write(std::as_bytes(std::span(script)));
    if (!run_in(place.path())) refuse(fmt::format("gnuplot failed: {}", first_line_of(place.path() / kSaid)));
    for (const auto& [picture, ending] : {std::pair{kSvg, ".svg"}, {kPng, ".png"}}) {
      std::filesystem::rename(place.path() / picture, prefix + ending);
    }
  } catch (const std::filesystem::filesystem_error& error) {
    refuse(error.code().message());
  } catch (const IoError& error) {
    if (std::string_view(error.what()).starts_with(flag)) throw;
    refuse(error.what());
  }
}

}  // namespace raffia::internal::bench
