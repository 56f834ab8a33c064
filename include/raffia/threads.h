// Where parallel work runs. Ops cut their work into tasks that depend on shapes and options alone, so results have the same
// bits on any executor and for any number of threads.
#ifndef RAFFIA_THREADS_H_
#define RAFFIA_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace raffia {

// Runs tasks 0..count-1, each once, on at most `max_workers` workers, and returns when all are done.
// Implement it to run Raffia on your own threads (at::parallel_for, a job system, one thread).
class Executor {
 public:
  virtual ~Executor() = default;

  // Upper bound of workers that run at once; at least 1.
  virtual int concurrency() const = 0;

  // `task(index, worker)`: 0 <= worker < min(max_workers, concurrency()), and no two tasks run at once with one worker number.
  // The first exception that a task throws is rethrown here, after the others have ended.
  virtual void run(int64_t count, int max_workers, const std::function<void(int64_t index, int worker)>& task) = 0;
};

// A pool of `threads` - 1 sleeping threads plus the caller's. Calls from within a task run on the calling thread.
std::unique_ptr<Executor> make_thread_pool(int threads);

// The executor used when options name none: a pool over all the CPUs this process may run on, made at first use.
Executor& default_executor();

}  // namespace raffia

#endif  // RAFFIA_THREADS_H_
