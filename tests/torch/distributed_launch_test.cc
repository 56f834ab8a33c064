#include "torch/train/distributed_launch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "support/temporary_directory.h"

namespace raffia::internal::train {
namespace {

using namespace std::chrono_literals;

struct Outcome {
  int code = 0;
  std::string out, err;
};

Outcome run_shell(int ranks, const std::string& script, std::chrono::milliseconds grace = 20s) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.code = run_local_ranks({.ranks = ranks, .threads = 1, .command = {"/bin/sh", "-c", script}, .grace = grace});
  outcome.err = testing::internal::GetCapturedStderr();
  outcome.out = testing::internal::GetCapturedStdout();
  return outcome;
}

TEST(LocalRanks, KnowTheirPlaceAndTheFirstOneSpeaksForAll) {
  const Outcome outcome =
      run_shell(2, "echo $RANK of $WORLD_SIZE at $MASTER_ADDR with $OMP_NUM_THREADS; test $MASTER_PORT -gt 0");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "0 of 2 at 127.0.0.1 with 1\n");
  EXPECT_EQ(outcome.err, "rank 1: 1 of 2 at 127.0.0.1 with 1\n");
}

TEST(LocalRanks, FailureOfOneIsNamedAndHasItsExitCode) {
  const Outcome outcome = run_shell(3, "test $RANK = 2 && exit 7; exit 0");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.err.find("raffia: rank 2 (pid "), 0u) << outcome.err;
  EXPECT_NE(outcome.err.find(") exited with code 7\n"), std::string::npos) << outcome.err;
}

TEST(LocalRanks, OthersEndSoonAfterOneIsKilled) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = run_shell(2, "test $RANK = 1 && kill -9 $$; exec sleep 60", 200ms);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("raffia: rank 1 (pid "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(") was terminated by signal 9 (Killed)\n"), std::string::npos) << outcome.err;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);  // not the minute that rank 0 would sleep
}

TEST(LocalRanks, SignalThatIsPassedOnIsTheExitCodeAndNoFailure) {
  const Outcome outcome = run_shell(2, "test $RANK = 0 && kill -TERM $PPID; exec sleep 60");
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_EQ(outcome.err, "");
}

TEST(LocalRanks, RanksMayHeedAnyOfSeveralSignalsThatWerePassedOn) {
  // Rank 0 sends nothing before rank 1 has set its traps: signals that wait for a process come in the order of their numbers.
  const TemporaryDirectory directory("distributed_launch_test");
  const std::string ready = (directory.path() / "ready").string();
  const Outcome outcome =
      run_shell(2, "trap '' HUP; trap 'test $RANK = 0 && kill -HUP $PPID; sleep 0.5; exit 143' TERM; test $RANK = 1 && : >" +
                       ready + "; while test ! -e " + ready +
                       "; do sleep 0.05; done; test $RANK = 0 && kill -TERM $PPID; while :; do sleep 0.1; done");
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_EQ(outcome.err, "");
}

}  // namespace
}  // namespace raffia::internal::train
