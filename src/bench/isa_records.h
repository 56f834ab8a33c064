// Results of `raffia bench isa`: a record per op and shape, with a time for every instruction set.
#ifndef RAFFIA_BENCH_ISA_RECORDS_H_
#define RAFFIA_BENCH_ISA_RECORDS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/format.h"

namespace raffia::internal::bench {

// A wider ISA counts as slower if it takes more than this fraction longer: the best of several repeats varies by about as much.
inline constexpr double kIsaTolerance = 0.02;

struct IsaTime {
  std::string isa;
  double seconds = 0;
  std::optional<double> ratio = {};                       // seconds of the next narrower ISA over own seconds
  std::optional<double> gflops = {}, peak_fraction = {};  // nullopt: the op has no count of FLOP
};

// The fields with the names they are printed under, those of IsaTime with the ISA behind: "seconds_avx2". docs/cli.md explains
// them.
struct IsaRecord {
  std::string op, pass;
  std::optional<std::string> input;  // nullopt: not an estimator
  std::optional<bool> causal;        // the same
  std::string shape, dtype;
  int64_t threads = 0;
  std::vector<IsaTime> times;         // narrowest first, the same ISAs in all records
  std::optional<std::string> slower;  // ISAs that are slower than the next narrower one: "avx2, avx512"; nullopt: none is
};

// Fills in ratios and `slower` from the seconds.
void compare_isas(IsaRecord& record);

// Under the readable table, a line says in how many rows a wider ISA is slower, and a list in which.
void print_records(std::span<const IsaRecord> records, Format format, std::ostream& out);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ISA_RECORDS_H_
