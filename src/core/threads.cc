#include "raffia/threads.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/check.h"

namespace raffia {

using namespace internal;
namespace {

using Task = std::function<void(int64_t index, int worker)>;

int available_cpus() {
#ifdef __linux__
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0) return std::max(1, CPU_COUNT(&cpus));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Set while this thread runs a task of any pool. Nested calls run on this thread: waiting for workers that wait for this thread
// would be a deadlock.
thread_local bool inside_task = false;

class InsideTask {
 public:
  InsideTask() : before_(inside_task) { inside_task = true; }
  ~InsideTask() { inside_task = before_; }
  InsideTask(const InsideTask&) = delete;
  InsideTask& operator=(const InsideTask&) = delete;

 private:
  bool before_;
};

// One call of run(). Lives on the caller's stack.
struct Job {
  const Task& task;
  const int64_t count;
  const int workers;

  alignas(64) std::atomic<int64_t> next{0};  // the next task to be taken
  std::mutex error_mutex = {};
  std::exception_ptr error = nullptr;

  void work(int worker) {
    const InsideTask inside;
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
      try {
        task(index, worker);
      } catch (...) {
        const std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
      }
    }
  }
};

// Threads sleep until a job is announced, join it under the mutex, and take tasks from its counter. The caller takes tasks too;
// when none is left it closes the job and waits for the threads that joined. A thread that wakes late finds the job closed and
// sleeps again, so the caller never waits for a thread to wake up.
class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int threads) : concurrency_(threads), spins_(threads <= available_cpus() ? kSpins : 0) {
    helpers_.reserve(static_cast<size_t>(threads - 1));
    try {
      for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~ThreadPool() override { stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int concurrency() const override { return concurrency_; }

  void run(int64_t count, int max_workers, const Task& task) override {
    require(count >= 0, "Executor::run: count is {}, expected at least 0", count);
    require(max_workers >= 1, "Executor::run: max_workers is {}, expected at least 1", max_workers);
    Job job{
        .task = task, .count = count, .workers = static_cast<int>(std::min<int64_t>(std::min(max_workers, concurrency_), count))};
    if (job.workers <= 1 || inside_task) {
      job.work(0);
    } else {
      const std::lock_guard one_job_at_a_time(run_mutex_);
      open(job);
      job.work(0);
      close();
    }
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  // Number of spins before a thread sleeps, about 50 microseconds: the ops of a decoding step follow each other faster than a
  // sleeping thread wakes. Only if every thread has its own CPU; otherwise spinning would take time from the others.
  static constexpr int kSpins = 2000;

  void open(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      joined_ = 1;
      announced_.fetch_add(1, std::memory_order_release);
    }
    for (int i = 1; i < job.workers; ++i) wake_.notify_one();
  }

  void close() {
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    if (busy_.load() == 0) return;
    lock.unlock();
    for (int i = 0; i < spins_ && busy_.load(std::memory_order_acquire) > 0; ++i) hwy::Pause();
    lock.lock();
    idle_.wait(lock, [this] { return busy_.load() == 0; });
  }

  void help() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      lock.unlock();
      for (int i = 0; i < spins_ && announced_.load(std::memory_order_acquire) == seen; ++i) hwy::Pause();
      lock.lock();
      wake_.wait(lock, [&] { return stopping_ || announced_.load() != seen; });
      if (stopping_) return;
      seen = announced_.load();
      if (job_ == nullptr || joined_ == job_->workers) continue;
      Job& job = *job_;
      const int worker = joined_++;
      ++busy_;
      lock.unlock();
      job.work(worker);
      lock.lock();
      if (--busy_ == 0) idle_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      announced_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  const int concurrency_;
  const int spins_;
  std::vector<std::thread> helpers_;
  std::mutex run_mutex_;  // held by the caller whose job is running

  std::mutex mutex_;  // guards the members below; the atomics are also read by spinning threads
  std::condition_variable wake_, idle_;
  Job* job_ = nullptr;
  int joined_ = 0;             // workers of job_ so far, including the caller
  std::atomic<int> busy_ = 0;  // pool threads that are running tasks
  std::atomic<uint64_t> announced_ = 0;
  bool stopping_ = false;
};

}  // namespace

std::unique_ptr<Executor> make_thread_pool(int threads) {
  require(threads >= 1, "make_thread_pool: threads is {}, expected at least 1", threads);
  return std::make_unique<ThreadPool>(threads);
}

Executor& default_executor() {
  // Never destroyed: other static objects may still run ops while the process exits, and a forked child could not join the
  // threads.
  static Executor* const executor = make_thread_pool(available_cpus()).release();
  return *executor;
}

}  // namespace raffia
