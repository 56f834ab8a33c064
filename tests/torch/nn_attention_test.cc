// Attention modules: states, masks, draws, monitors, refusals.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "raffia/torch/nn.h"
#include "torch/libtorch.h"
#include "torch/nn_case.h"

namespace raffia::nn {

using namespace internal;
using namespace internal::nn;
namespace {

constexpr int64_t kWidth = 16, kHeads = 2;

AttentionOptions options_for(const std::string& estimator, bool causal) {
  return {.embed_dim = kWidth,
          .num_heads = kHeads,
          .estimator = parse_estimator(estimator),
          .causal = causal,
          .rotary = true,
          .conv = causal ? 3 : 0,
          .head_norm = true,
          .layer = 3};
}

Attention make(const AttentionOptions& options) {
  torch::manual_seed(5);
  Attention attention = make_attention(options);
  disturb(*attention, 0.3);
  attention->eval();
  return attention;
}

Attention make(const std::string& estimator, bool causal) { return make(options_for(estimator, causal)); }

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// What is checked of padding, for checks that go on.
struct Padded {
  Tensor x, valid;  // [B, T, E], [B, T, 1]
  Tensor out;       // where valid
};

// What padding holds changes no bit of the other outputs.
Padded expect_padding_untouched(AttentionImpl& attention) {
  const Tensor x = torch::randn({2, 13, kWidth});
  Tensor mask = torch::zeros({2, 13}, at::kBool);
  mask[0].narrow(0, 10, 3).fill_(true);
  mask[1].narrow(0, 3, 2).fill_(true);
  const Tensor before = attention.forward(x, {.key_padding_mask = mask});
  const Tensor after = attention.forward(x.masked_fill(mask.unsqueeze(2), 7), {.key_padding_mask = mask});
  const Tensor valid = mask.logical_not().unsqueeze(2);
  EXPECT_TRUE(torch::equal(before.masked_select(valid), after.masked_select(valid)));
  return {x, valid, before.masked_select(valid)};
}

class CausalAttention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CausalAttention, testing::ValuesIn(kCausal), test_name);

// Chunks, steps and the whole add the same numbers in another order: rounding of fp32 over 27 tokens, times what head_norm makes
// of small outputs.
constexpr double kSameNumbers = 1e-5;

TEST_P(CausalAttention, ChunksAndStepsEqualWhole) {
  const Attention attention = make(GetParam(), true);
  const Tensor x = torch::randn({2, 27, kWidth});
  for (const bool with_gradients : {false, true}) {
    const at::AutoGradMode mode(with_gradients);
    const Tensor whole = attention->forward(x);
    for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{1, 7, 2, 11, 1, 5}, std::vector<int64_t>(27, 1)}) {
      AttentionState state;
      std::vector<Tensor> parts;
      int64_t begin = 0;
      for (const int64_t length : chunks) {
        parts.push_back(attention->forward(x.narrow(1, begin, length), {.state = &state}));
        begin += length;
      }
      EXPECT_EQ(state.position, 27);
      EXPECT_LE(relative_difference(torch::cat(parts, 1), whole), kSameNumbers) << chunks.size() << " chunks";
    }
  }
}

TEST_P(CausalAttention, NeverLooksAhead) {
  const Attention attention = make(GetParam(), true);
  const Tensor x = torch::randn({1, 19, kWidth});
  const Tensor before = attention->forward(x);
  for (const int64_t changed : {1, 9, 18}) {
    Tensor other = x.clone();
    other.select(1, changed).add_(1);
    const Tensor after = attention->forward(other);
    EXPECT_TRUE(torch::equal(after.narrow(1, 0, changed), before.narrow(1, 0, changed))) << changed;
    EXPECT_FALSE(torch::equal(after.select(1, changed), before.select(1, changed))) << changed;
  }
}

TEST_P(CausalAttention, SelectedStatesContinueTheirOwnSequences) {
  const at::NoGradGuard no_grad;
  const Attention attention = make(GetParam(), true);
  const Tensor x = torch::randn({3, 9, kWidth}), next = torch::randn({2, 4, kWidth});
  const Tensor chosen = torch::tensor({2, 0}, at::kLong);
  AttentionState all, some;
  attention->forward(x, {.state = &all});
  attention->forward(x.index_select(0, chosen), {.state = &some});
  AttentionState selected = all.select(chosen);
  EXPECT_LE(relative_difference(attention->forward(next, {.state = &selected}), attention->forward(next, {.state = &some})),
            kSameNumbers);
}

TEST_P(CausalAttention, PaddingNeverTouchesValidOutputs) { expect_padding_untouched(*make(GetParam(), true)); }

TEST_P(CausalAttention, DetachedStateCutsTheGraph) {
  const Attention attention = make(GetParam(), true);
  const Tensor x = torch::randn({1, 5, kWidth}, torch::requires_grad());
  AttentionState state;
  attention->forward(x, {.state = &state});
  state = state.detached();
  attention->forward(torch::randn({1, 5, kWidth}), {.state = &state}).sum().backward();
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(CausalAttention, StateRefusesPaddingAndAnotherBatch) {
  const Attention attention = make(GetParam(), true);
  AttentionState state;
  const Tensor x = torch::randn({2, 5, kWidth});
  const Tensor mask = torch::zeros({2, 5}, at::kBool);
  EXPECT_NE(message_of([&] { attention->forward(x, {.key_padding_mask = mask, .state = &state}); }).find("both given"),
            std::string::npos);
  attention->forward(x, {.state = &state});
  EXPECT_NE(message_of([&] { attention->forward(x.narrow(0, 0, 1), {.state = &state}); }).find("state has 2 entries, expected 1"),
            std::string::npos);
}

class BidirectionalAttention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, BidirectionalAttention, testing::ValuesIn(kBidirectional), test_name);

TEST_P(BidirectionalAttention, PaddingNeverTouchesValidOutputs) {
  const Attention attention = make(GetParam(), false);
  const Padded padded = expect_padding_untouched(*attention);
  EXPECT_GT(relative_difference(attention->forward(padded.x).masked_select(padded.valid), padded.out), 1e-3);
}

TEST_P(BidirectionalAttention, ReadsBothWays) {
  const Attention attention = make(GetParam(), false);
  const Tensor x = torch::randn({1, 4, kWidth});
  Tensor other = x.clone();
  other.select(1, 3).add_(1);
  EXPECT_GT(relative_difference(attention->forward(other).select(1, 0), attention->forward(x).select(1, 0)), 1e-4);
}

class CrossAttention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CrossAttention, testing::Values("softmax", "rfa:samples=8", "lara:samples=4", "ra", "mean"),
                         test_name);

TEST_P(CrossAttention, QueriesDoNotMeetWhereDrawsDoNotDependOnThem) {
  const Attention attention = make(GetParam(), false);
  const Tensor query = torch::randn({2, 5, kWidth}), key = torch::randn({2, 9, kWidth});
  const Tensor out = attention->forward(query, key, key);
  EXPECT_EQ(out.sizes(), query.sizes());
  if (GetParam().starts_with("lara")) return;  // its proposals are means of queries
  EXPECT_LE(relative_difference(attention->forward(query.narrow(1, 0, 3), key, key), out.narrow(1, 0, 3)), kSameNumbers);
}

class RandomAttention : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, RandomAttention,
                         testing::Values("rfa:samples=8", "rfa_gate:samples=8,map=positive", "hybrid:samples=8,window=4",
                                         "lara:samples=8,window=4,chunk=2", "ra", "eva:samples=4,window=4,chunk=2,features=8"),
                         test_name);

TEST_P(RandomAttention, TrainingTakesDrawsOfThePoolAndEvaluationTheStoredOne) {
  AttentionOptions options = options_for(GetParam(), true);
  options.pool = 5;
  const Attention attention = make(options);
  const Tensor x = torch::randn({1, 29, kWidth});
  const auto out = [&](uint64_t draw) {
    attention->redraw(draw);
    return attention->forward(x);
  };
  const Tensor stored = out(0);
  EXPECT_TRUE(torch::equal(out(3), stored));
  attention->train();
  const Tensor first = out(1);
  EXPECT_FALSE(torch::equal(first, stored));
  EXPECT_FALSE(torch::equal(out(2), first));
  EXPECT_TRUE(torch::equal(out(6), first));
  attention->eval();
  EXPECT_TRUE(torch::equal(out(2), stored));

  options.pool = 0;
  const Attention fixed = make(options);
  fixed->train();
  fixed->redraw(2);
  EXPECT_TRUE(torch::equal(fixed->forward(x), stored));
}

TEST_P(RandomAttention, LayersAndSeedsDrawTheirOwn) {
  AttentionOptions options = options_for(GetParam(), true);
  const Tensor x = torch::randn({1, 29, kWidth});
  const Tensor here = make(options)->forward(x);
  options.layer = 4;
  EXPECT_FALSE(torch::equal(make(options)->forward(x), here));
  options.layer = 3;
  options.estimator.seed = 8;
  EXPECT_FALSE(torch::equal(make(options)->forward(x), here));
}

TEST(Attention, LaraDrawsInTrainingAndReadsMeansInEvaluationUnlessTold) {
  const Tensor x = torch::randn({2, 29, kWidth});
  const auto out = [&](const char* estimator, bool training) {
    const Attention attention = make(estimator, false);
    attention->train(training);
    return attention->forward(x);
  };
  EXPECT_TRUE(torch::equal(out("lara:samples=4", false), out("lara:samples=4,mean=true", false)));
  EXPECT_TRUE(torch::equal(out("lara:samples=4", true), out("lara:samples=4,mean=false", true)));
  EXPECT_FALSE(torch::equal(out("lara:samples=4,mean=false", false), out("lara:samples=4,mean=true", false)));
  EXPECT_TRUE(torch::equal(out("lara:samples=4,mean=true", true), out("lara:samples=4,mean=true", false)));
}

TEST(Attention, GatesBeginWithGeometricSpans) {
  AttentionOptions options{.embed_dim = 32, .num_heads = 4, .estimator = parse_estimator("rfa_gate"), .causal = true};
  const auto spans = [&options] {
    const Attention attention = make_attention(options);
    attention->forward(torch::randn({2, 3, 32}));
    return attention->monitor().spans;
  };
  const auto expect = [](const std::vector<double>& found, double first, double last) {
    ASSERT_EQ(found.size(), 4U);
    for (size_t head = 0; head < 4; ++head) {
      const double span = first * std::pow(last / first, static_cast<double>(head) / 3);
      EXPECT_NEAR(found[head], span, 1e-5 * span);  // a bias is fp32
    }
  };
  expect(spans(), 2, 256);
  options.span_min = 4;
  options.span_max = 32;
  expect(spans(), 4, 32);
  options.span_min = options.span_max = 0;
  options.estimator = parse_estimator("hybrid");
  expect(spans(), 16, 512);
}

TEST(Attention, MonitorSeesSigmaClampsAndSpansOfTokensAlone) {
  const Attention attention = make("rfa_gate:samples=8", true);
  const Tensor x = torch::randn({1, 40, kWidth});
  attention->forward(x);
  const Monitor monitor = attention->monitor();
  const Tensor sigma = attention->named_parameters()["map.sigma"];
  EXPECT_NEAR(monitor.sigma, sigma.mean().item<double>(), 1e-6);
  EXPECT_GE(monitor.clamp_rate, 0);
  EXPECT_LE(monitor.clamp_rate, 1);

  Tensor mask = torch::zeros({1, 40}, at::kBool);
  mask.narrow(1, 20, 20).fill_(true);
  attention->forward(x, {.key_padding_mask = mask});
  const std::vector<double> masked = attention->monitor().spans;
  attention->forward(x.narrow(1, 0, 20));
  const std::vector<double> cut = attention->monitor().spans;
  for (size_t head = 0; head < masked.size(); ++head) EXPECT_NEAR(masked[head], cut[head], 1e-6 * cut[head]);

  EXPECT_EQ(make("softmax", true)->monitor().sigma, 0);
  EXPECT_TRUE(make("rfa", true)->monitor().spans.empty());
}

TEST(Attention, ConvolutionBeginsAsTheIdentity) {
  AttentionOptions options{.embed_dim = kWidth, .num_heads = kHeads, .causal = true};
  const Tensor x = torch::randn({2, 7, kWidth});
  torch::manual_seed(1);
  const Tensor without = make_attention(options)->forward(x);
  options.conv = 4;
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(make_attention(options)->forward(x), without));
}

TEST(Attention, RotaryScoresDependOnDistanceAlone) {
  const Attention attention = make("window:window=2", true);
  const Tensor pair = torch::randn({1, 2, kWidth});
  const Tensor far = torch::cat({torch::randn({1, 10, kWidth}), pair}, 1);
  AttentionOptions options = options_for("window:window=2", true);
  options.conv = 0;
  const Attention plain = make(options);
  EXPECT_LE(relative_difference(plain->forward(far).narrow(1, 10, 2), plain->forward(pair)), kSameNumbers);
  options.rotary = false;
  EXPECT_GT(relative_difference(make(options)->forward(pair), plain->forward(pair)), 1e-3);
}

TEST(Attention, KeepsWhatTheEstimatorSawAndGave) {
  const Attention attention = make("softmax", true);
  const Tensor x = torch::randn({2, 6, kWidth});
  attention->forward(x);
  EXPECT_FALSE(attention->kept().q.defined());
  attention->keep(true);
  attention->forward(x);
  const auto kept = attention->kept();
  EXPECT_TRUE(torch::equal(kept.input, x));
  for (const Tensor& part : {kept.q, kept.k, kept.v, kept.out}) {
    EXPECT_EQ(part.sizes(), at::IntArrayRef({2, 6, kHeads, kWidth / kHeads}));
    EXPECT_FALSE(part.requires_grad());
  }
  EXPECT_TRUE(torch::equal(kept.out, ops::softmax(kept.q, kept.k, kept.v, {.causal = true})));
  attention->keep(false);
  EXPECT_FALSE(attention->kept().q.defined());
}

TEST(Attention, RunsInBfloat16UnderAutocast) {
  for (const std::string& estimator : kCausal) {
    const Attention attention = make(estimator, true);
    const Tensor x = torch::randn({1, 12, kWidth});
    const Tensor precise = attention->forward(x);
    at::autocast::set_autocast_cpu_dtype(at::kBFloat16);
    at::autocast::set_cpu_enabled(true);
    const Tensor out = attention->forward(x);
    at::autocast::clear_cache();
    at::autocast::set_cpu_enabled(false);
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    // Sampled kinds may draw another key; the others lose what 8 bits lose.
    if (estimator.starts_with("ra")) continue;
    EXPECT_LE(relative_difference(out.to(at::kFloat), precise), 0.1) << estimator;
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const auto refused = [](AttentionOptions options, const std::string& why) {
    EXPECT_NE(message_of([&] { make_attention(options); }).find(why), std::string::npos) << why;
  };
  AttentionOptions options = options_for("rfa_gate", true);
  options.causal = false;
  options.conv = 0;
  refused(options, "rfa_gate is causal, expected causal to be true");
  options = options_for("softmax", false);
  options.conv = 4;
  refused(options, "conv is 4");
  options = options_for("softmax", true);
  options.num_heads = 3;
  refused(options, "embed_dim is 16 and num_heads 3");
  options = options_for("rfa:layer=2", true);
  refused(options, "sets layer or draw");

  const Attention attention = make("softmax", false);
  const Tensor x = torch::randn({2, 5, kWidth});
  EXPECT_EQ(message_of([&] {
              attention->forward(torch::randn({2, 5, 4}));
            }),
            "Attention: query has shape [2, 5, 4], expected [B, Tq, 16]");
  EXPECT_EQ(message_of([&] { attention->forward(x, x, x.narrow(1, 0, 4)); }),
            "Attention: value has shape [2, 4, 16], expected [2, 5, 16] (batch of query, length of key, embed_dim)");
  EXPECT_NE(message_of([&] {
              attention->forward(x, {.key_padding_mask = torch::zeros({2, 4}, at::kBool)});
            }).find("key_padding_mask is Bool [2, 4], expected bool [2, 5]"),
            std::string::npos);
  AttentionState state;
  EXPECT_NE(message_of([&] { attention->forward(x, {.state = &state}); }).find("only causal attention has one"),
            std::string::npos);
  EXPECT_NE(
      message_of([&] { make("eva:samples=0,window=4,chunk=2", true)->forward(x, {.state = &state}); }).find("its memory grows"),
      std::string::npos);
}

}  // namespace
}  // namespace raffia::nn
