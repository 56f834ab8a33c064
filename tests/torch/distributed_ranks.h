// Runs a piece of a test on several ranks: forked processes of this machine that form a group. The test's own process must not
// compute with torch, since threads do not survive a fork.
#ifndef RAFFIA_TESTS_TORCH_DISTRIBUTED_RANKS_H_
#define RAFFIA_TESTS_TORCH_DISTRIBUTED_RANKS_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "torch/libtorch.h"
#include "torch/train/distributed.h"
#include "torch/train/distributed_launch.h"

namespace raffia::internal::train {

struct Ended {
  int status = 0;    // as waitpid tells it
  std::string said;  // what the rank returned, or the message of what it threw
  bool passed() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
};

// Each rank runs `body` and may fail expectations, which are printed with its rank.
inline std::vector<Ended> end_of_ranks(int size, const GroupOptions& options, const std::function<std::string(Group&)>& body) {
  const int port = free_local_port();
  std::vector<std::pair<pid_t, int>> children;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      at::set_num_threads(1);
      std::string said;
      bool failed = false;
      try {
        Group group({.rank = rank, .size = size, .address = "127.0.0.1", .port = port}, options);
        said = body(group);
      } catch (const std::exception& error) {
        said = error.what();
        failed = true;
      }
      if (testing::Test::HasFailure()) std::fprintf(stderr, "the failures above are those of rank %d\n", rank);
      [[maybe_unused]] const ssize_t written = ::write(ends[1], said.data(), said.size());
      std::fflush(nullptr);
      ::_exit(failed || testing::Test::HasFailure() ? 1 : 0);
    }
    ::close(ends[1]);
    children.emplace_back(pid, ends[0]);
  }
  std::vector<Ended> result;
  for (const auto& [pid, fd] : children) {
    Ended ended;
    std::array<char, 4096> buffer;
    for (ssize_t count; (count = ::read(fd, buffer.data(), buffer.size())) > 0;) {
      ended.said.append(buffer.data(), static_cast<size_t>(count));
    }
    ::close(fd);
    ::waitpid(pid, &ended.status, 0);
    result.push_back(ended);
  }
  return result;
}

inline void on_ranks(int size, const std::function<void(Group&)>& body) {
  const std::vector<Ended> ranks = end_of_ranks(size, {.timeout = std::chrono::seconds(60)}, [&](Group& group) {
    body(group);
    group.barrier();  // rank 0 has the store: it goes last
    return std::string();
  });
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(ranks[rank].passed()) << "rank " << rank << " of " << size << ": " << ranks[rank].said;
  }
}

// |a - b| over the larger of |b| and `floor`, at its worst.
inline double relative_difference(const at::Tensor& a, const at::Tensor& b, double floor = 1e-6) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(floor)).item<double>();
}

}  // namespace raffia::internal::train

#endif  // RAFFIA_TESTS_TORCH_DISTRIBUTED_RANKS_H_
