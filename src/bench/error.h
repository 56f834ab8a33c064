// Errors of benchmarks.
#ifndef RAFFIA_BENCH_ERROR_H_
#define RAFFIA_BENCH_ERROR_H_

#include "raffia/error.h"

namespace raffia::internal::bench {

// Options that are valid one by one but contradict each other, or ask for what there is not. The message names the options,
// as users write them: --ops.
class OptionError : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ERROR_H_
