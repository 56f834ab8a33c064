#include "cli/train_ranks.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "raffia/error.h"
#include "torch/train/distributed_launch.h"

namespace raffia::cli {
namespace {

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

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
  const int code = train::run_local_ranks({.ranks = count,
                                           .threads = threads > 0 ? static_cast<int>(threads) : std::max(1, cores() / count),
                                           .command = own_command()});
  if (code != 0) std::exit(code);
}

int threads_of_rank(int64_t asked, const train::Place& place) {
  if (asked > 0) return static_cast<int>(asked);
  const char* said = place.size > 1 ? std::getenv("OMP_NUM_THREADS") : nullptr;
  const int threads = said == nullptr ? 0 : std::atoi(said);
  return threads > 0 ? threads : cores();
}

}  // namespace raffia::cli
