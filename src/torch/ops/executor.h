// Runs Raffia's tasks on torch's threads.
#ifndef RAFFIA_TORCH_OPS_EXECUTOR_H_
#define RAFFIA_TORCH_OPS_EXECUTOR_H_

#include "raffia/threads.h"

namespace raffia::internal::ops {

// Over at::parallel_for, with at::get_num_threads() workers. Calls from within a parallel region run on the calling thread.
Executor& torch_executor();

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_EXECUTOR_H_
