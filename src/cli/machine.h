// What this process runs on, as the operating system tells it.
#ifndef RAFFIA_CLI_MACHINE_H_
#define RAFFIA_CLI_MACHINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace raffia::cli {

struct Cache {
  std::string name;   // "L1d", "L2"
  int64_t bytes = 0;  // of one instance
};

std::string cpu_name();
std::vector<Cache> caches();  // of the first CPU, the one nearest to it first; empty where the system does not tell
std::string os_name();

int64_t peak_rss();  // most resident bytes that this process had so far

// Peak resident bytes of a process that does `work` and nothing else; empty where work fails there. Call it before the first
// thread is started: it forks.
std::optional<int64_t> peak_rss_of(const std::function<void()>& work);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_MACHINE_H_
