#include "cli/waiting_threads.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace raffia::cli {

bool let_waiting_threads_sleep() {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (std::getenv(kPolicy) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return false;
  return ::setenv(kPolicy, "passive", 1) == 0;
}

void restart_with_sleeping_threads(char** argv) {
  if (!let_waiting_threads_sleep()) return;  // also after the restart: no endless loop
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(program.c_str(), argv);
}

}  // namespace raffia::cli
