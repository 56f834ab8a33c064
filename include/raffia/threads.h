// Where parallel work runs. Ops divide their work into tasks that depend only on shapes and options, so results are bitwise the
// same on any executor and for any number of threads.
#ifndef RAFFIA_THREADS_H_
#define RAFFIA_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

// Runs tasks 0..count-1, each once, on at most `max_workers` workers, and returns when all are done.
// Implement it to run Raffia on your own threads (at::parallel_for, a job system, one thread).
class RAFFIA_API Executor {
 public:
  virtual ~Executor() = default;

  // Maximum number of workers that run at the same time; at least 1.
  virtual int concurrency() const = 0;

  // `task(index, worker)`: 0 <= worker < min(max_workers, concurrency()). Tasks with the same worker number never run at the same
  // time. The first exception of a task is rethrown here, after the others have ended.
  virtual void run(int64_t count, int max_workers, const std::function<void(int64_t index, int worker)>& task) = 0;
};

// A pool of `threads` - 1 threads plus the caller's. A call from within a task runs on the calling thread only.
RAFFIA_API std::unique_ptr<Executor> make_thread_pool(int threads);

// The executor used if the options have none: a pool over all CPUs that this process may use, made at first use.
RAFFIA_API Executor& default_executor();

// Where an op or a model runs: the member `run` of options. Results are bitwise the same for all of these.
struct RunOptions {
  int threads = 0;               // at most this many; 0: as many as the executor has
  Executor* executor = nullptr;  // default_executor() if null
};

}  // namespace raffia

#endif  // RAFFIA_THREADS_H_
