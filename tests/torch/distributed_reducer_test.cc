#include "torch/train/distributed_reducer.h"

#include "distributed_ranks.h"

namespace raffia::internal::train {
namespace {

// Parameters of a small net, one of which no loss uses and one of which only rank 1 uses.
struct Net {
  Tensor a, b, c, unused, sometimes;

  Net() {
    torch::manual_seed(3);
    for (Tensor* parameter : {&a, &b, &c, &unused, &sometimes}) *parameter = at::randn({16, 16}).requires_grad_();
  }
  std::vector<Tensor> parameters() const { return {a, b, c, unused, sometimes}; }

  Tensor loss(const Tensor& x, bool with_sometimes) const {
    Tensor h = at::tanh(at::tanh(x.mm(a)).mm(b)).mm(c);
    if (with_sometimes) h = h + x.mm(sometimes);
    return h.pow(2).mean();
  }
};

Tensor inputs(int64_t rows) {
  torch::manual_seed(5);
  return at::randn({rows, 16});
}

// Averages over ranks of their mean losses are the mean over the whole batch.
void expect_equal_to_one_rank(int size, int64_t micro_steps, int64_t bucket_bytes) {
  on_ranks(size, [&](Group& group) {
    const int64_t rows = 8, total = rows * micro_steps * size;
    const Tensor x = inputs(total);
    Net whole, own;
    // Rows come rank by rank within a micro-step.
    const auto part = [&](int64_t micro, int64_t rank) { return x.narrow(0, (micro * size + rank) * rows, rows); };
    for (int64_t micro = 0; micro < micro_steps; ++micro) {
      for (int64_t rank = 0; rank < size; ++rank) (whole.loss(part(micro, rank), rank == 1) / size).backward();
    }

    GradientReducer reducer(group, own.parameters(), {.bucket_bytes = bucket_bytes});
    for (int step = 0; step < 2; ++step) {  // a second step finds nothing of the first
      for (const Tensor& parameter : own.parameters()) parameter.mutable_grad() = Tensor();
      for (int64_t micro = 0; micro < micro_steps; ++micro) {
        if (micro + 1 == micro_steps) reducer.arm();
        own.loss(part(micro, group.rank()), group.rank() == 1).backward();
      }
      reducer.finish();
    }

    const std::vector<Tensor> expected = whole.parameters(), found = own.parameters();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].grad().defined(), expected[i].grad().defined()) << "parameter " << i;
      if (!found[i].grad().defined()) continue;
      // Sums of fewer than 100 terms in another order: 1e-6 is 16 units in the last place.
      EXPECT_LT(relative_difference(found[i].grad(), expected[i].grad()), 1e-6) << "parameter " << i;
      const Tensor all = group.all_gather(found[i].grad());
      for (int64_t rank = 1; rank < size; ++rank) EXPECT_TRUE(all[rank].equal(all[0])) << "parameter " << i;
    }
    EXPECT_FALSE(found[3].grad().defined());
  });
}

TEST(GradientReducer, EqualsOneRankWithTheWholeBatch) {
  expect_equal_to_one_rank(2, 1, 4 << 20);
  expect_equal_to_one_rank(3, 1, 1200);
}

TEST(GradientReducer, SendsOnceForAllMicroSteps) { expect_equal_to_one_rank(2, 3, 2100); }

TEST(GradientReducer, SendsDuringTheBackwardPass) {
  on_ranks(2, [](Group& group) {
    Net net;
    GradientReducer reducer(group, {net.a, net.b, net.c}, {.bucket_bytes = 1});
    EXPECT_EQ(reducer.buckets(), 3);
    reducer.arm();
    net.loss(inputs(8), false).backward();
    EXPECT_EQ(group.traffic(Collective::all_reduce).calls, 3);
    EXPECT_EQ(reducer.sent_in_backward(), 3);
    reducer.finish();
    EXPECT_EQ(group.traffic(Collective::all_reduce).calls, 3);
    EXPECT_EQ(group.traffic(Collective::all_reduce).bytes, 3 * 4 * (16 * 16 + 1));
  });
}

TEST(GradientReducer, SumsWhereAsked) {
  on_ranks(2, [](Group& group) {
    const Tensor w = at::ones({4}).requires_grad_();
    GradientReducer reducer(group, {w}, {.average = false});
    reducer.arm();
    (w * (group.rank() + 1.0)).sum().backward();
    reducer.finish();
    EXPECT_TRUE(w.grad().equal(at::full({4}, 3.0)));
  });
}

TEST(GradientReducer, LeavesGradientsAloneWithoutOtherRanks) {
  on_ranks(1, [](Group& group) {
    Net net;
    GradientReducer reducer(group, net.parameters());
    reducer.arm();
    net.loss(inputs(8), false).backward();
    const Tensor before = net.a.grad().clone();
    reducer.finish();
    EXPECT_TRUE(net.a.grad().equal(before));
    EXPECT_FALSE(net.unused.grad().defined());
  });
}

}  // namespace
}  // namespace raffia::internal::train
