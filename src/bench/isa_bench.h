// What `raffia bench isa` measures: every op at every instruction set of this machine.
#ifndef RAFFIA_BENCH_ISA_BENCH_H_
#define RAFFIA_BENCH_ISA_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "bench/isa_records.h"
#include "bench/observer.h"
#include "bench/op_form.h"

namespace raffia::internal::bench {

struct IsaBenchOptions {
  BenchShape shape;
  std::vector<std::string> ops = {};  // estimators and kernel_op_names(); empty: all
  int64_t length = 1024;              // tokens of a sequence; depth of a step
  std::vector<int64_t> threads = {1};
  int64_t repeats = 15;
  bool scalar = false;  // also without vector instructions
};

// Ops run at one ISA after the other, which set_max_isa() chooses for the whole process: no other op may run meanwhile. The ISA
// that was active before is active again afterwards, also after an exception. Limits of single ops (core/isa_limits.h) do not
// apply meanwhile: otherwise a limit could never be measured again. Throws InvalidArgument for an op that does not exist.
std::vector<IsaRecord> measure_isas(IsaBenchOptions options, Observer& observer);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ISA_BENCH_H_
