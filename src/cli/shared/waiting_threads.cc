#include "cli/shared/waiting_threads.h"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace raffia::internal::cli {
namespace {

std::array<char, 24> g_sleeping{"OMP_WAIT_POLICY=passive"};  // an entry of an environment, which is not const

bool is_chosen(char** environment) {
  for (char** entry = environment; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("OMP_WAIT_POLICY=") || text.starts_with("GOMP_SPINCOUNT=")) return true;
  }
  return false;
}

}  // namespace

void let_waiting_threads_sleep() {
  if (!is_chosen(environ)) ::putenv(g_sleeping.data());
}

void restart_with_sleeping_threads(char** arguments, char** environment) {
  if (is_chosen(environment)) return;  // also after the restart: no endless loop
  std::array<char, 4096> program;
  const ssize_t size = ::readlink("/proc/self/exe", program.data(), program.size() - 1);
  if (size <= 0) return;
  program[static_cast<size_t>(size)] = '\0';
  std::vector<char*> entries{g_sleeping.data()};
  for (char** entry = environment; *entry != nullptr; ++entry) entries.push_back(*entry);
  entries.push_back(nullptr);
  ::execve(program.data(), arguments, entries.data());
}

}  // namespace raffia::internal::cli
