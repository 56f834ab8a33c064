#include "bench/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "raffia/error.h"

namespace raffia::internal::bench {
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

// Clock ticks since the start of the machine.
struct Ticks {
  uint64_t busy = 0, all = 0;
};

// Lines of /proc/stat: cpu0 user nice system idle iowait irq softirq steal ...
std::map<int, Ticks> ticks_by_cpu(std::string_view stat) {
  std::map<int, Ticks> cpus;
  std::istringstream lines{std::string(stat)};
  for (std::string line; std::getline(lines, line);) {
    int cpu = 0;
    unsigned long long user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    if (std::sscanf(line.c_str(), "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, &user, &nice, &system, &idle, &iowait,
                    &irq, &softirq, &steal) != 9) {
      continue;
    }
    const uint64_t busy = user + system + irq + softirq + steal;
    cpus[cpu] = {.busy = busy, .all = busy + nice + idle + iowait};
  }
  return cpus;
}

std::string stat_text() {
  std::ifstream file("/proc/stat");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

int available_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

double busy_cores(std::string_view before, std::string_view after, const std::function<bool(int cpu)>& may_run_on) {
  const std::map<int, Ticks> first = ticks_by_cpu(before);
  double sum = 0;
  for (const auto& [cpu, last] : ticks_by_cpu(after)) {
    const auto begin = first.find(cpu);
    if (begin == first.end() || !may_run_on(cpu)) continue;
    const auto all = static_cast<double>(last.all) - static_cast<double>(begin->second.all);
    const auto busy = static_cast<double>(last.busy) - static_cast<double>(begin->second.busy);
    if (all > 0) sum += std::clamp(busy / all, 0.0, 1.0);
  }
  return sum;
}

double busy_cores() {
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;  // more CPUs than the set holds
  const std::string before = stat_text();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // 30 ticks of a CPU
  return busy_cores(before, stat_text(), [&](int cpu) { return cpu < CPU_SETSIZE && CPU_ISSET(cpu, &allowed); });
#else
  return 0;
#endif
}

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

}  // namespace raffia::internal::bench
