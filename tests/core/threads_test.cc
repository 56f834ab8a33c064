#include "raffia/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

// Runs `count` tasks and checks the promises of Executor::run: each task once, worker numbers below the bound, none of them twice
// at the same time.
void expect_contract(Executor& executor, int64_t count, int max_workers) {
  const int bound = std::min(max_workers, executor.concurrency());
  std::vector<std::atomic<int>> runs(static_cast<size_t>(count));
  std::vector<std::atomic<int>> busy(static_cast<size_t>(bound));
  std::atomic<int> broken = 0;
  executor.run(count, max_workers, [&](int64_t index, int worker) {
    if (index < 0 || index >= count || worker < 0 || worker >= bound) {
      ++broken;
      return;
    }
    if (busy[static_cast<size_t>(worker)].fetch_add(1) != 0) ++broken;
    runs[static_cast<size_t>(index)].fetch_add(1);
    busy[static_cast<size_t>(worker)].fetch_sub(1);
  });
  EXPECT_EQ(broken, 0);
  for (size_t i = 0; i < runs.size(); ++i) EXPECT_EQ(runs[i], 1) << "task " << i;
}

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (int threads : {1, 2, 3, 7}) {
    const auto pool = make_thread_pool(threads);
    EXPECT_EQ(pool->concurrency(), threads);
    for (int max_workers : {1, 2, 5, 100}) {
      for (int64_t count : {0, 1, 2, 6, 7, 8, 1000}) expect_contract(*pool, count, max_workers);
    }
  }
}

TEST(ThreadPool, ManyShortRunsLoseNothing) {
  const auto pool = make_thread_pool(3);
  std::atomic<int64_t> sum = 0;
  for (int run = 0; run < 3000; ++run) pool->run(5, 3, [&](int64_t index, int) { sum += index; });
  EXPECT_EQ(sum, 3000 * 10);
}

TEST(ThreadPool, WorkersDoRunAtOnce) {
  // Neither of two tasks ends before the other has begun, so one thread alone would never return.
  const auto pool = make_thread_pool(2);
  std::atomic<int> begun = 0;
  pool->run(2, 2, [&](int64_t, int) {
    ++begun;
    while (begun < 2) std::this_thread::yield();
  });
  EXPECT_EQ(begun, 2);
}

TEST(ThreadPool, SleepingThreadsWakeForALaterRun) {
  const auto pool = make_thread_pool(2);
  for (int run = 0; run < 3; ++run) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // far longer than threads spin
    std::atomic<int> begun = 0;
    pool->run(2, 2, [&](int64_t, int) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, RethrowsAfterTheOtherTasksHaveEnded) {
  for (int threads : {1, 4}) {
    const auto pool = make_thread_pool(threads);
    std::atomic<int> ended = 0;
    try {
      pool->run(100, threads, [&](int64_t index, int) {
        if (index == 13) throw std::runtime_error("task 13");
        ++ended;
      });
      FAIL() << "the exception was lost";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "task 13");
    }
    EXPECT_EQ(ended, 99);
    expect_contract(*pool, 50, threads);  // still usable
  }
}

TEST(ThreadPool, OneOfManyExceptionsArrives) {
  const auto pool = make_thread_pool(4);
  EXPECT_THROW(pool->run(64, 4, [](int64_t, int) { throw std::out_of_range("each"); }), std::out_of_range);
}

TEST(ThreadPool, NestedRunsStayOnTheirThread) {
  const auto pool = make_thread_pool(3);
  const auto other = make_thread_pool(2);
  std::atomic<int> inner = 0;
  std::atomic<int> strayed = 0;
  pool->run(6, 3, [&](int64_t, int) {
    const std::thread::id here = std::this_thread::get_id();
    for (Executor* nested : {pool.get(), other.get()}) {
      nested->run(4, 3, [&](int64_t, int worker) {
        ++inner;
        if (std::this_thread::get_id() != here || worker != 0) ++strayed;
      });
    }
  });
  EXPECT_EQ(inner, 6 * 2 * 4);
  EXPECT_EQ(strayed, 0);
}

TEST(ThreadPool, ANestedExceptionPassesThroughBothRuns) {
  const auto pool = make_thread_pool(2);
  const auto outer = [&] {
    pool->run(2, 2, [&](int64_t, int) { pool->run(2, 2, [](int64_t, int) { throw std::domain_error("inner"); }); });
  };
  EXPECT_THROW(outer(), std::domain_error);
  expect_contract(*pool, 20, 2);
}

TEST(ThreadPool, SeveralThreadsMayCallAtOnce) {
  const auto pool = make_thread_pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int run = 0; run < 50; ++run) expect_contract(*pool, 17, 3);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadPool, RefusesNonsense) {
  EXPECT_THROW(make_thread_pool(0), InvalidArgument);
  const auto pool = make_thread_pool(2);
  const auto task = [](int64_t, int) {};
  EXPECT_THROW(pool->run(-1, 2, task), InvalidArgument);
  EXPECT_THROW(pool->run(1, 0, task), InvalidArgument);
}

TEST(DefaultExecutor, IsOnePoolOverTheCpusAllowed) {
  EXPECT_EQ(&default_executor(), &default_executor());
  EXPECT_GE(default_executor().concurrency(), 1);
  EXPECT_LE(default_executor().concurrency(), static_cast<int>(std::thread::hardware_concurrency()));
  expect_contract(default_executor(), 100, default_executor().concurrency());
}

}  // namespace
}  // namespace raffia::internal
