#include "cli/shared/train_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "raffia/error.h"
#include "torch/train/distributed_launch.h"

namespace raffia::internal::cli {
namespace {

// 0 if it is not set, or no number.
int threads_in_environment() {
  const char* value = std::getenv("OMP_NUM_THREADS");
  return value == nullptr ? 0 : std::max(0, std::atoi(value));
}

int threads_beside(int cores, double busy) { return std::max({1, cores / 2, cores - static_cast<int>(std::lround(busy))}); }

// Program and arguments of this process.
std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) throw IoError("/proc/self/cmdline: cannot be read, expected the command line of this process");
  std::vector<std::string> command;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    command.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  command.front() = std::filesystem::read_symlink("/proc/self/exe").string();
  return command;
}

}  // namespace

void run_as_local_ranks(int64_t ranks, int64_t threads) {
  const int count = static_cast<int>(ranks);
  const int code =
      train::run_local_ranks({.ranks = count,
                              .threads = threads > 0 ? static_cast<int>(threads) : std::max(1, bench::available_cores() / count),
                              .command = own_command()});
  if (code != 0) std::exit(code);
}

int default_threads() {
  const int threads = threads_in_environment();
  return threads > 0 ? threads : bench::available_cores();
}

int threads_of_new_run(const std::function<void(const std::string&)>& note) {
  if (const int threads = threads_in_environment(); threads > 0) return threads;
  const int cores = bench::available_cores();
  if (cores == 1) return 1;
  const double busy = bench::busy_cores();
  const int threads = threads_beside(cores, busy);
  if (threads < cores) {
    note(fmt::format("{:.1f} of {} cores are busy with other processes: training with --threads {}", busy, cores, threads));
  }
  return threads;
}

}  // namespace raffia::internal::cli
