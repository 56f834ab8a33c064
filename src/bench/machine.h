// The machine that this process runs on, as reported by the operating system.
#ifndef RAFFIA_BENCH_MACHINE_H_
#define RAFFIA_BENCH_MACHINE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal::bench {

struct Cache {
  std::string name;   // "L1d", "L2"
  int64_t bytes = 0;  // of one instance
};

std::string cpu_name();
std::vector<Cache> caches();  // of the first CPU, nearest first; empty if unknown
std::string os_name();

int available_cores();  // of the machine, as far as this process may run there; at least 1

// How many of them other processes keep busy, measured over 0.3 s in which the caller does nothing: 1.5 is one and half of
// another. Processes of low priority (nice) do not count: they make way. 0 if the system does not tell.
double busy_cores();

// The same from two readings of /proc/stat. CPUs that `may_run_on` refuses do not count.
double busy_cores(std::string_view before, std::string_view after, const std::function<bool(int cpu)>& may_run_on);

int64_t peak_rss();  // maximum resident set size of this process so far, in bytes

// Peak resident bytes of a child process that only runs `work`; nullopt if it fails there. Call it before the first thread is
// started: it forks.
std::optional<int64_t> peak_rss_of(const std::function<void()>& work);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_MACHINE_H_
