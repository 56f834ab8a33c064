// One sequence split over ranks gives the outputs, losses and gradients of one rank that has it all.
#include <fmt/format.h>

#include "distributed_ranks.h"
#include "raffia/random.h"
#include "torch/nn/models.h"
#include "torch/train/sequence_parallel.h"

namespace raffia::internal::train {
namespace {

// fp32 sums over a few hundred tokens, in another order: about 100 units in the last place.
constexpr double kTolerance = 1e-5;

constexpr int64_t kBatch = 2, kHeads = 3, kDim = 8, kValue = 5, kSamples = 8;

struct Inputs {
  Tensor q, k, v, gate_logits, draws, sigma;
  std::vector<Tensor> leaves() const { return {q, k, v, gate_logits, sigma}; }
};

Inputs inputs(int64_t length) {
  torch::manual_seed(11);
  Inputs in;
  in.q = at::randn({kBatch, length, kHeads, kDim}).requires_grad_();
  in.k = at::randn({kBatch, length, kHeads, kDim}).requires_grad_();
  in.v = at::randn({kBatch, length, kHeads, kValue}).requires_grad_();
  // Spans from a few tokens to hundreds: what a slice leaves is neither nothing nor all.
  in.gate_logits = (at::randn({kBatch, length, kHeads}) + 3.0).requires_grad_();
  in.draws = at::randn({kHeads, kSamples, kDim});
  in.sigma = (at::rand({kHeads, kDim}) * 0.5 + 0.5).requires_grad_();
  return in;
}

void expect_op_equal_to_one_rank(int size) {
  on_ranks(size, [&](Group& group) {
    const int64_t slice = 37, length = slice * size;
    const Inputs whole = inputs(length), own = inputs(length);
    const Tensor weights = at::randn({kBatch, length, kHeads, kValue});

    const ops::Carried expected = ops::rfa_gate(whole.q, whole.k, whole.v, whole.gate_logits,
                                                {.kind = MapKind::trig, .weight = whole.draws, .sigma = whole.sigma});
    (expected.out * weights).sum().backward();

    SequenceParallel split(group, slice);
    const ops::Carried found =
        split.gated(split.slice(own.q), split.slice(own.k), split.slice(own.v), split.slice(own.gate_logits),
                    {.kind = MapKind::trig, .weight = own.draws, .sigma = own.sigma});
    (found.out * split.slice(weights)).sum().backward();

    EXPECT_LT(relative_difference(found.out.detach(), split.slice(expected.out).detach()), kTolerance);
    EXPECT_LT(relative_difference(found.state, expected.state.detach()), kTolerance);
    const std::vector<Tensor> a = own.leaves(), b = whole.leaves();
    for (size_t i = 0; i < a.size(); ++i) {
      const Tensor gradient = a[i].grad().clone();
      group.all_reduce(gradient);
      EXPECT_LT(relative_difference(gradient, b[i].grad()), kTolerance) << "input " << i;
    }
  });
}

TEST(SequenceParallel, OpOnTwoRanksEqualsOne) { expect_op_equal_to_one_rank(2); }
TEST(SequenceParallel, OpOnThreeRanksEqualsOne) { expect_op_equal_to_one_rank(3); }

ModelConfig config_with(Positions positions, int64_t conv) {
  ModelConfig config;
  config.task = Task::lm;
  config.vocabulary = 50;
  config.width = 32;
  config.heads = 2;
  config.layers = 2;
  config.ffn = 64;
  config.estimators = {parse_estimator("rfa_gate")};
  config.positions = positions;
  config.conv = conv;
  config.max_length = positions == Positions::learned ? 256 : 0;
  return config;
}

void expect_model_equal_to_one_rank(int size, const ModelConfig& config) {
  on_ranks(size, [&](Group& group) {
    const int64_t slice = 24, length = slice * size;
    torch::manual_seed(7);
    nn::LanguageModelImpl whole(config);
    torch::manual_seed(7);
    nn::LanguageModelImpl own(config);
    torch::manual_seed(8);
    const Tensor ids = at::randint(4, config.vocabulary, {kBatch, length}, at::kLong);
    const Tensor targets = at::randint(4, config.vocabulary, {kBatch, length}, at::kLong);
    const auto loss_of = [&](nn::LanguageModelImpl& model, const Tensor& input, const Tensor& target) {
      const Tensor logits = model.forward(input);
      return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten(), {}, at::Reduction::Sum) /
             static_cast<double>(kBatch * length);
    };

    const Tensor expected = loss_of(whole, ids, targets);
    expected.backward();

    auto split = std::make_shared<SequenceParallel>(group, slice);
    own.split_sequence(split);
    const Tensor loss = loss_of(own, split->slice(ids).contiguous(), split->slice(targets).contiguous());
    loss.backward();

    const Tensor sum = loss.detach().clone();
    group.all_reduce(sum);
    EXPECT_LT(relative_difference(sum, expected.detach()), kTolerance);
    const auto found = own.named_parameters();
    for (const auto& parameter : whole.named_parameters()) {
      const Tensor gradient = found[parameter.key()].grad().clone();
      group.all_reduce(gradient);
      // Gradients that are sums of terms that cancel, as those of biases of keys, are compared with what is big in this model.
      EXPECT_LT(relative_difference(gradient, parameter.value().grad(), 1e-3), kTolerance) << parameter.key();
    }
  });
}

TEST(SequenceParallel, ModelOnTwoRanksEqualsOne) { expect_model_equal_to_one_rank(2, config_with(Positions::none, 0)); }
TEST(SequenceParallel, ModelWithConvolutionAndRotaryPositionsOnThreeRanksEqualsOne) {
  expect_model_equal_to_one_rank(3, config_with(Positions::rotary, 4));
}
TEST(SequenceParallel, ModelWithLearnedPositionsOnTwoRanksEqualsOne) {
  expect_model_equal_to_one_rank(2, config_with(Positions::learned, 3));
}

TEST(SequenceParallel, BytesDoNotDependOnTheLength) {
  on_ranks(2, [](Group& group) {
    const auto bytes_at = [&](int64_t length) {
      const int64_t before = group.traffic(Collective::all_gather).bytes;
      const Inputs in = inputs(length);
      SequenceParallel split(group, length / 2);
      const ops::Carried carried =
          split.gated(split.slice(in.q), split.slice(in.k), split.slice(in.v), split.slice(in.gate_logits),
                      {.kind = MapKind::trig, .weight = in.draws, .sigma = in.sigma});
      carried.out.sum().backward();
      return group.traffic(Collective::all_gather).bytes - before;
    };
    const int64_t state = 2 * kSamples * (kValue + 1) + 2;  // floats a head
    const int64_t at_64 = bytes_at(64), at_1024 = bytes_at(1024);
    EXPECT_EQ(at_64, 2 * kBatch * kHeads * state * 4);  // forward and backward
    EXPECT_EQ(at_1024, at_64);
    if (group.first()) {
      fmt::print("bytes a layer and rank, forward and backward: {} at 64 tokens, {} at 1,024\n", at_64, at_1024);
      std::fflush(stdout);
    }
  });
}

}  // namespace
}  // namespace raffia::internal::train
