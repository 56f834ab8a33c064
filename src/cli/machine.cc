#include "cli/machine.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "raffia/error.h"

namespace raffia::cli {
namespace {

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value after `separator` in the first line that starts with `key`.
std::string value_in(const std::filesystem::path& path, const std::string& key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t\"", line.find(separator) + 1);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
  }
  return "";
}

// "512K" as sysfs writes it.
int64_t parse_cache_size(const std::string& text) {
  size_t end = 0;
  const int64_t number = std::stoll(text, &end);
  const char unit = end < text.size() ? text[end] : ' ';
  return unit == 'K' ? number << 10 : unit == 'M' ? number << 20 : number;
}

int64_t peak_rss_in(const rusage& usage) {
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
#endif
}

}  // namespace

int64_t peak_rss() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? peak_rss_in(usage) : 0;
}

std::string cpu_name() {
  const std::string name = value_in("/proc/cpuinfo", "model name", ':');
  if (!name.empty()) return name;
  utsname system{};
  return uname(&system) == 0 ? system.machine : "unknown";
}

std::vector<Cache> caches() {
  std::vector<Cache> found;
  for (int index = 0;; ++index) {
    const std::filesystem::path directory = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}", index);
    const std::string size = first_line(directory / "size");
    if (size.empty()) return found;
    const std::string type = first_line(directory / "type");
    const char* suffix = type == "Data" ? "d" : type == "Instruction" ? "i" : "";
    found.push_back({.name = fmt::format("L{}{}", first_line(directory / "level"), suffix), .bytes = parse_cache_size(size)});
  }
}

std::string os_name() {
  utsname system{};
  const std::string kernel = uname(&system) == 0 ? fmt::format("{} {}", system.sysname, system.release) : "unknown";
  const std::string distribution = value_in("/etc/os-release", "PRETTY_NAME", '=');
  return distribution.empty() ? kernel : fmt::format("{}, {}", distribution, kernel);
}

std::optional<int64_t> peak_rss_of(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child < 0) throw IoError(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    try {
      work();
      _exit(0);
    } catch (...) {
      _exit(1);
    }
  }
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0) {
    if (errno != EINTR) throw IoError(fmt::format("wait4: {}", std::strerror(errno)));
  }
  if (WIFSIGNALED(status)) {
    throw Error(fmt::format("the process that measures memory was terminated by signal {} ({})", WTERMSIG(status),
                            WTERMSIG(status) == SIGKILL ? "is there enough memory?" : strsignal(WTERMSIG(status))));
  }
  if (WEXITSTATUS(status) != 0) return std::nullopt;
  return peak_rss_in(usage);
}

}  // namespace raffia::cli
