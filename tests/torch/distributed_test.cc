#include "torch/train/distributed.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "distributed_ranks.h"
#include "torch/train/distributed_run.h"
#include "torch/train/options.h"

namespace raffia::internal::train {
namespace {

using namespace std::chrono_literals;

Place place_of(const std::map<std::string, std::string>& variables) {
  return place_from([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(Place, ComesFromWhatLaunchersSet) {
  EXPECT_EQ(place_of({}).size, 1);
  const Place torchrun = place_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node7"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torchrun.rank, 1);
  EXPECT_EQ(torchrun.size, 4);
  EXPECT_EQ(torchrun.address, "node7");
  EXPECT_EQ(torchrun.port, 29500);
  const Place mpirun =
      place_of({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(mpirun.rank, 2);
  EXPECT_EQ(mpirun.size, 3);
  const Place srun = place_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  EXPECT_EQ(srun.rank, 0);
  EXPECT_EQ(srun.size, 2);
}

TEST(Place, RefusesWhatMakesNoSenseAndNamesTheVariable) {
  const auto message = [](const std::map<std::string, std::string>& variables) -> std::string {
    try {
      place_of(variables);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message({{"WORLD_SIZE", "two"}}).find("WORLD_SIZE is \"two\""), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}, {"RANK", "2"}}).find("rank is 2"), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}, {"RANK", "1"}}).find("MASTER_ADDR"), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"MASTER_ADDR", "a"}}).find("MASTER_PORT"), std::string::npos);
}

TEST(Group, OneProcessAloneNeedsNothing) {
  Group group;
  const Tensor x = at::ones({3});
  group.all_reduce(x);
  group.barrier();
  EXPECT_TRUE(group.all_gather(x).equal(at::ones({1, 3})));
  EXPECT_EQ(group.traffic(Collective::all_reduce).bytes, 0);
}

TEST(Group, CollectivesOfThreeRanks) {
  on_ranks(3, [](Group& group) {
    const double rank = group.rank();
    const Tensor sum = at::full({5}, rank + 1);
    group.all_reduce(sum);
    EXPECT_TRUE(sum.equal(at::full({5}, 6.0)));

    const Tensor all = group.all_gather(at::full({2, 2}, rank));
    EXPECT_EQ(all.sizes(), (std::vector<int64_t>{3, 2, 2}));
    for (int64_t r = 0; r < 3; ++r) EXPECT_TRUE(all[r].equal(at::full({2, 2}, static_cast<double>(r))));

    const Tensor told = at::full({4}, group.rank(), at::kLong);
    group.broadcast(told, 2);
    EXPECT_TRUE(told.equal(at::full({4}, 2, at::kLong)));

    const Tensor first = at::full({1000}, rank), second = at::full({7}, 2 * rank);
    Group::Pending a = group.start_all_reduce(first), b = group.start_all_reduce(second);
    const Tensor between = at::ones({1});
    group.all_reduce(between);  // does not wait for those under way
    b.wait();
    a.wait();
    EXPECT_TRUE(first.equal(at::full({1000}, 3.0)));
    EXPECT_TRUE(second.equal(at::full({7}, 6.0)));
    EXPECT_TRUE(between.equal(at::full({1}, 3.0)));
    group.barrier();

    EXPECT_EQ(group.traffic(Collective::all_reduce).calls, 4);
    EXPECT_EQ(group.traffic(Collective::all_reduce).bytes, 4 * (5 + 1000 + 7 + 1));
    EXPECT_EQ(group.traffic(Collective::all_gather).bytes, 16);
    EXPECT_EQ(group.traffic(Collective::broadcast).bytes, group.rank() == 2 ? 32 : 0);
  });
}

TEST(Group, SharesWhatEachRankSays) {
  on_ranks(3, [](Group& group) {
    for (int round = 0; round < 3; ++round) {
      const std::string own = fmt::format("{} in round {}", group.rank(), round) + std::string(1000 * group.rank(), 'x');
      const std::vector<std::string> all = group.share("words", own);
      ASSERT_EQ(all.size(), 3U);
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(all[static_cast<size_t>(rank)], fmt::format("{} in round {}", rank, round) + std::string(1000 * rank, 'x'));
      }
    }
  });
}

TEST(Group, FirstRankMayEndAfterSharingAndAllKnow) {
  const std::vector<Ended> ranks = end_of_ranks(3, {.timeout = 30s, .heartbeat = 200ms}, [](Group& group) -> std::string {
    if (group.rank() == 2) ::usleep(300'000);
    return group.share("last", std::to_string(group.rank())).back();
  });
  for (const Ended& rank : ranks) EXPECT_EQ(rank.said, "2");
}

TEST(Group, OptionsThatAreNotWhatARankSendsAreRefused) {
  const std::pair<std::string, std::string> cases[] = {
      {"[1]", "the options of rank 1: is a value of type array, expected a JSON object"},
      {"{", "the options of rank 1: "},
      {R"({"task": 3})", "the options of rank 1: field \"task\" is 3, expected a string"},
      {std::string(2000, '['), "the options of rank 1: "},
      {std::string(size_t{2} << 20, ' '), "the options of rank 1 have 2097152 bytes, expected at most 1048576: "}};
  for (const auto& [sent, said] : cases) {
    const auto ranks = end_of_ranks(2, {}, [&sent = sent](Group& group) -> std::string {
      if (group.rank() == 1) return group.share("options", sent).front();
      try {
        require_same_options(group, default_options({Task::lm}));
      } catch (const InvalidArgument& error) {
        return error.what();
      }
      return "accepted";
    });
    EXPECT_TRUE(ranks[0].said.starts_with(said)) << ranks[0].said;
    EXPECT_TRUE(ranks[0].said.ends_with("do all ranks run the same version of raffia?")) << ranks[0].said;
  }
}

TEST(Group, RankThatDiesBeforeItSharesIsNamed) {
  const std::vector<Ended> ranks = end_of_ranks(2, {.timeout = 30s, .heartbeat = 200ms}, [](Group& group) -> std::string {
    if (group.rank() == 1) ::raise(SIGKILL);
    group.share("never", "");
    return "went on";
  });
  EXPECT_EQ(ranks[0].said.find("rank 1 ("), 0U) << ranks[0].said;
  EXPECT_NE(ranks[0].said.find("no longer answers"), std::string::npos) << ranks[0].said;
}

// Rank `victim` of three is killed at step 3; what the others say.
void expect_named(int victim) {
  const GroupOptions options{.timeout = 30s, .heartbeat = 200ms};
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Ended> ranks = end_of_ranks(3, options, [&](Group& group) -> std::string {
    const Tensor x = at::ones({100});
    for (int64_t step = 0; step < 1000; ++step) {
      group.at_step(step, step >= 2 ? 2 : -1);
      if (group.rank() == victim && step == 3) ::raise(SIGKILL);
      group.all_reduce(x);
    }
    return "went on";
  });
  // Detection takes a few beats, far less than the time-out of collectives; the bound leaves room for a busy machine.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
  for (int rank = 0; rank < 3; ++rank) {
    const Ended& ended = ranks[static_cast<size_t>(rank)];
    if (rank == victim) {
      EXPECT_TRUE(WIFSIGNALED(ended.status));
      continue;
    }
    EXPECT_TRUE(WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 1);
    EXPECT_EQ(ended.said.find(fmt::format("rank {} (", victim)), 0u) << "rank " << rank << " says: " << ended.said;
    EXPECT_NE(ended.said.find("no longer answers (last seen "), std::string::npos) << ended.said;
    EXPECT_NE(ended.said.find("stopped at step 3; the last checkpoint is step 2"), std::string::npos) << ended.said;
  }
}

TEST(Group, RankThatIsKilledIsNamedByTheOthers) { expect_named(1); }
TEST(Group, FirstRankThatIsKilledIsNamedByTheOthers) { expect_named(0); }

TEST(Group, RankThatStaysAwayIsNamed) {
  const std::vector<Ended> ranks = end_of_ranks(2, {.timeout = 2s, .heartbeat = 200ms}, [](Group& group) -> std::string {
    group.barrier();
    if (group.rank() == 1) ::sleep(5);
    group.barrier();
    return "";
  });
  EXPECT_NE(ranks[0].said.find("rank 1 ("), std::string::npos) << ranks[0].said;
  EXPECT_NE(ranks[0].said.find("answers but did not reach collective 2 within 2 s"), std::string::npos) << ranks[0].said;
}

TEST(Group, RankThatNeverComesIsNamed) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::string said;
    try {
      Group group({.rank = 0, .size = 2, .address = "127.0.0.1", .port = free_local_port()}, {.timeout = 1s});
    } catch (const GroupError& error) {
      said = error.what();
    }
    const bool named = said.find("rank 1 did not connect to 127.0.0.1:") != std::string::npos;
    if (!named) std::fprintf(stderr, "said: %s\n", said.c_str());
    ::_exit(named ? 0 : 1);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace raffia::internal::train
