#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "raffia/error.h"
#include "torch/gradcheck.h"
#include "torch/libtorch.h"
#include "torch/ops_case.h"

namespace raffia::ops {
namespace {

// The first output of an op on q, k, v.
struct NamedOp {
  std::string name;  // raffia::<name>
  std::function<Tensor(const Tensor& q, const Tensor& k, const Tensor& v, const Case& rest)> run;
};

Map plain_map() { return {.kind = MapKind::elu}; }

std::vector<NamedOp> all_ops() {
  using T = const Tensor&;
  using C = const Case&;
  return {
      {"softmax", [](T q, T k, T v, C in) { return softmax(q, k, v, {.causal = true}, in.valid); }},
      {"rfa", [](T q, T k, T v, C in) { return rfa(q, k, v, plain_map(), in.valid).out; }},
      {"causal_rfa", [](T q, T k, T v, C in) { return causal_rfa(q, k, v, plain_map(), {}, in.valid).out; }},
      {"rfa_gate", [](T q, T k, T v, C in) { return rfa_gate(q, k, v, in.gate, plain_map(), {}, in.valid).out; }},
      {"hybrid",
       [](T q, T k, T v, C in) {
         const HybridTensors inputs{
             .q = q, .k = k, .v = v, .gate_logits = in.gate, .log_scale = torch::full({q.size(2)}, -1.0, in.gate.options())};
         return hybrid(inputs, plain_map(), {}, {.window = 4}, in.valid).out;
       }},
      {"lara", [](T q, T k, T v, C in) { return lara(q, k, v, {.samples = 6, .seed = 3}, in.valid); }},
      {"ra", [](T q, T k, T v, C in) { return ra(q, k, v, {.draws = 2, .seed = 3}, in.valid); }},
      {"eva", [](T q, T k, T v, C in) { return eva(q, k, v, {.samples = 7, .window = 6}, in.valid); }},
      {"causal_lara",
       [](T q, T k, T v, C in) {
         return causal_lara(q, k, v, {}, {.window = 6, .chunk = 3, .samples = 8, .seed = 3}, in.valid).out;
       }},
      {"causal_eva",
       [](T q, T k, T v, C in) {
         return causal_eva(q, k, v, {}, {.window = 6, .chunk = 3, .summaries = 4, .features = 5, .seed = 3}, in.valid).out;
       }},
  };
}

TEST(TorchOps, GradientsAreThoseOfFiniteDifferences) {
  const Case in(11);
  for (const NamedOp& op : all_ops()) {
    SCOPED_TRACE(op.name);
    // Outputs of masked tokens have no gradient in some ops: they are not used.
    const Tensor read = in.valid.unsqueeze(-1).unsqueeze(-1);
    expect_gradients([&](const std::vector<Tensor>& x) -> std::vector<Tensor> { return {op.run(x[0], x[1], x[2], in) * read}; },
                     {{"q", in.q}, {"k", in.k}, {"v", in.v}});
  }
}

TEST(TorchOps, EmptyInputsHaveEmptyOutputsAndGradients) {
  using T = const Tensor&;
  using C = const Case&;
  std::vector<NamedOp> ops = all_ops();
  ops.push_back({"softmax of windows",
                 [](T q, T k, T v, C in) { return softmax(q, k, v, {.causal = true, .window = 6, .before = 1}, in.valid); }});
  ops.push_back({"hybrid of far inputs", [](T q, T k, T v, C in) {
                   const HybridTensors inputs{.q = q,
                                              .k = k,
                                              .v = v,
                                              .gate_logits = in.gate,
                                              .log_scale = torch::full({q.size(2)}, -1.0, in.gate.options()),
                                              .q_far = torch::cat({q, q}, -1),
                                              .k_far = torch::cat({k, k}, -1)};
                   return hybrid(inputs, plain_map(), {}, {.window = 4}, in.valid).out;
                 }});
  for (const NamedOp& op : ops) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      for (const int64_t axis : {0, 1}) {  // no sequences, or sequences without tokens
        SCOPED_TRACE(op.name + ", " + c10::toString(type) + ", axis " + std::to_string(axis));
        Case in;
        for (Tensor* each : {&in.q, &in.k, &in.v}) *each = each->narrow(axis, 0, 0).to(type).requires_grad_();
        in.gate = in.gate.narrow(axis, 0, 0).to(type == at::kDouble ? at::kDouble : at::kFloat);
        in.valid = in.valid.narrow(axis, 0, 0);
        const Tensor out = op.run(in.q, in.k, in.v, in);
        EXPECT_EQ(out.sizes(), (std::vector<int64_t>{in.q.size(0), in.q.size(1), in.q.size(2), in.v.size(3)}));
        const std::vector<Tensor> leaves = {in.q, in.k, in.v}, gradients = torch::autograd::grad({out.sum()}, leaves);
        for (size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(gradients[i].sizes(), leaves[i].sizes()) << i;
      }
    }
  }
}

TEST(TorchOps, RecordIsMadeOnlyWhereGradientsAreWanted) {
  static std::vector<bool> recorded;  // of each forward kernel
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = call.name();
        if (name.starts_with("raffia::_") && name.ends_with("_forward")) recorded.push_back(call.inputs().at(1).toBool());
        return nullptr;
      }).needsInputs(true));
  const Case in = as_float(Case());
  for (const NamedOp& op : all_ops()) {
    SCOPED_TRACE(op.name);
    recorded.clear();
    const Tensor learned = in.q.detach().clone().requires_grad_();
    EXPECT_FALSE(op.run(in.q, in.k, in.v, in).requires_grad());
    {
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(op.run(learned, in.k, in.v, in).requires_grad());
    }
    EXPECT_TRUE(op.run(learned, in.k, in.v, in).requires_grad());
    EXPECT_EQ(recorded, (std::vector<bool>{false, false, true}));
  }
  at::removeCallback(handle);
}

TEST(TorchOps, GradientsOfBf16AreNearThoseOfFp32) {
  const Case in = as_float(Case());
  for (const NamedOp& op : all_ops()) {
    if (op.name == "ra") continue;  // rounded logits draw other keys
    SCOPED_TRACE(op.name);
    std::vector<std::vector<Tensor>> gradients;
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      std::vector<Tensor> leaves;
      for (const Tensor& each : {in.q, in.k, in.v}) leaves.push_back(each.to(type).requires_grad_());
      const Tensor out = op.run(leaves[0], leaves[1], leaves[2], in);
      EXPECT_EQ(out.scalar_type(), type);
      gradients.push_back(torch::autograd::grad({out.to(at::kFloat).square().sum()}, leaves));
    }
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(gradients[1][i].scalar_type(), at::kBFloat16);
      // 8 bits of fraction in every input: errors of some percent of the largest entry.
      EXPECT_LT(largest_difference(gradients[0][i], gradients[1][i]), 0.1 * gradients[0][i].abs().max().item<double>());
    }
  }
}

// torch.ops.raffia.linear_layer.
Tensor linear_layer_op(const Tensor& x, const Tensor& weight, const Tensor& bias, bool gelu) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("raffia::linear_layer", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const c10::optional<Tensor>&, bool)>();
  return op.call(x, weight, bias.defined() ? c10::optional<Tensor>(bias) : c10::nullopt, gelu);
}

TEST(LinearLayer, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(3);
  for (const bool gelu : {false, true}) {
    expect_gradients(
        [&](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {linear_layer_op(in[0], in[1], in[2], gelu)}; },
        {{"x", torch::randn({2, 9, 5})}, {"weight", torch::randn({7, 5})}, {"bias", torch::randn({7})}});
  }
}

// The fp32 kernels against torch in double: any strides, with and without a bias, 0 and 1 tokens, rows that are no vectors.
TEST(LinearLayer, ItsOutputMayBeChangedInPlace) {
  torch::manual_seed(5);
  for (const bool gelu : {false, true}) {
    const Tensor x = torch::randn({9, 5}), weight = torch::randn({7, 5}).requires_grad_(),
                 bias = torch::randn({7}).requires_grad_();
    Tensor y = linear_layer_op(x, weight, bias, gelu);
    y.relu_();
    const std::vector<Tensor> found = torch::autograd::grad({y.sum()}, {weight, bias});
    const Tensor sums = at::linear(x, weight, bias);
    const std::vector<Tensor> expected = torch::autograd::grad({at::relu(gelu ? at::gelu(sums) : sums).sum()}, {weight, bias});
    // Sums of 9 products of numbers of size 1.
    for (size_t i = 0; i < 2; ++i) EXPECT_LT(largest_difference(found[i], expected[i]), 1e-5);
  }
}

TEST(LinearLayer, OneGradientAloneIsThatOfAll) {
  torch::manual_seed(6);
  const std::vector<Tensor> values = {torch::randn({2, 9, 5}), torch::randn({7, 5}), torch::randn({7})};
  std::vector<Tensor> all;
  for (const Tensor& value : values) all.push_back(value.clone().requires_grad_());
  const std::vector<Tensor> expected = torch::autograd::grad({linear_layer_op(all[0], all[1], all[2], true).square().sum()}, all);
  for (size_t i = 0; i < values.size(); ++i) {
    std::vector<Tensor> in = values;
    in[i] = in[i].clone().requires_grad_();
    const std::vector<Tensor> found = torch::autograd::grad({linear_layer_op(in[0], in[1], in[2], true).square().sum()}, {in[i]});
    EXPECT_TRUE(at::equal(found[0], expected[i])) << i;
  }
}

TEST(LinearLayer, EqualsTorchInDouble) {
  torch::manual_seed(4);
  for (const auto& [tokens, in, out] : {std::tuple(0, 5, 3), {1, 1, 1}, {3, 17, 33}, {65, 40, 70}, {300, 130, 260}}) {
    for (const bool gelu : {false, true}) {
      for (const bool biased : {false, true}) {
        const std::vector<Tensor> exact = {torch::randn({2, in, tokens}, at::kFloat).transpose(1, 2).to(at::kDouble),
                                           torch::randn({in, out}, at::kFloat).t().to(at::kDouble),
                                           biased ? torch::randn({out}, at::kFloat).to(at::kDouble) : Tensor()};
        const Tensor dy = torch::randn({2, tokens, out}, at::kFloat);
        const auto results = [&](at::ScalarType type, const auto& op) {
          std::vector<Tensor> leaves, given;
          for (const Tensor& each : exact) {
            given.push_back(each.defined() ? each.to(type).detach().requires_grad_() : Tensor());
            if (each.defined()) leaves.push_back(given.back());
          }
          const Tensor y = op(given[0], given[1], given[2]);
          std::vector<Tensor> all = torch::autograd::grad({y}, leaves, {dy.to(type)});
          all.push_back(y.detach());
          return all;
        };
        const auto found = results(at::kFloat, [&](auto... each) { return linear_layer_op(each..., gelu); });
        const auto expected = results(at::kDouble, [&](const Tensor& x, const Tensor& weight, const Tensor& bias) {
          const Tensor sums = at::linear(x, weight, biased ? c10::optional<Tensor>(bias) : c10::nullopt);
          return gelu ? at::gelu(sums) : sums;
        });
        // Sums of n normal products, n the longest sum: n roundings of partial sums that are under 6 sqrt(n). The slope of gelu
        // is within 3e-7 = 5 roundings, and up to 1.13; a sum that is off moves it by as much again.
        const double longest = std::max({in, out, 2 * tokens}), rounding = 0x1p-24;
        const double bound = (longest + 12) * rounding * 6 * std::sqrt(longest) * (gelu ? 1.13 * (1 + std::sqrt(in)) : 1.0);
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(found[i].sizes(), expected[i].sizes());
          if (found[i].numel() > 0) {
            EXPECT_LE(largest_difference(found[i], expected[i]), bound) << tokens << ", " << in << ", " << out << " output " << i;
          }
        }
      }
    }
  }
}

TEST(LinearLayer, HasShapesOnMetaAndRefusesWhatDoesNotFit) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  EXPECT_EQ(linear_layer_op(at::empty({2, 3, 5}, meta), at::empty({7, 5}, meta), {}, true).sizes(),
            (std::vector<int64_t>{2, 3, 7}));
  const auto refusal = [](const Tensor& x, const Tensor& weight, const Tensor& bias) -> std::string {
    try {
      linear_layer_op(x, weight, bias, false);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(torch::ones({2, 5}), torch::ones({7, 4}), {}).find("weight has shape [7, 4], expected [7, 5] (columns of x)"),
            std::string::npos);
  EXPECT_NE(refusal(torch::ones({2, 5}), torch::ones({7, 5}), torch::ones({5})).find("bias has shape [5], expected [7]"),
            std::string::npos);
  EXPECT_NE(refusal(torch::ones({2, 5}, at::kLong), torch::ones({7, 5}), {}).find("x is Long, expected Float or Double"),
            std::string::npos);
}

// torch.ops.raffia.cross_entropy: {sum, losses}.
using Losses = std::tuple<Tensor, Tensor>;
Losses cross_entropy_op(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double smoothing) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("raffia::cross_entropy", "")
                             .typed<Losses(const Tensor&, const Tensor&, const Tensor&, int64_t, double)>();
  return op.call(hidden, weight, targets, -100, smoothing);
}

// Ids below `columns`, of which every third is padding.
Tensor some_targets(int64_t tokens, int64_t columns) {
  const Tensor targets = torch::randint(columns, {tokens}, at::kLong);
  targets.slice(0, 1, tokens, 3).fill_(-100);
  return targets;
}

TEST(CrossEntropy, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(7);
  const Tensor targets = some_targets(7, 11);
  for (const double smoothing : {0.0, 0.1}) {
    expect_gradients(
        [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
          return {std::get<0>(cross_entropy_op(in[0], in[1], targets, smoothing))};
        },
        {{"hidden", torch::randn({7, 5})}, {"weight", torch::randn({11, 5})}});
  }
}

// 20,000 columns are several blocks of tokens.
TEST(CrossEntropy, EqualsTorchInDouble) {
  torch::manual_seed(8);
  for (const auto& [tokens, width, columns] :
       {std::tuple(0, 5, 3), {1, 1, 1}, {3, 17, 33}, {65, 40, 70}, {300, 33, 523}, {1000, 4, 20000}}) {
    for (const double smoothing : {0.0, 0.1}) {
      const Tensor hidden = torch::randn({width, tokens}).t(), weight = torch::randn({width, columns}).t(),
                   targets = some_targets(tokens, columns);
      const auto results = [&](at::ScalarType type, const auto& loss) {
        const std::vector<Tensor> in = {hidden.to(type).detach().requires_grad_(), weight.to(type).detach().requires_grad_()};
        const Losses found = loss(in[0], in[1]);
        std::vector<Tensor> all = torch::autograd::grad({std::get<0>(found) * 0.5}, in);
        all.push_back(std::get<0>(found).detach());
        all.push_back(std::get<1>(found).detach());
        return all;
      };
      const auto found = results(at::kFloat, [&](auto... in) { return cross_entropy_op(in..., targets, smoothing); });
      const auto expected = results(at::kDouble, [&](const Tensor& x, const Tensor& matrix) -> Losses {
        const Tensor logits = at::linear(x, matrix);
        const auto loss = [&](int64_t how) { return at::cross_entropy_loss(logits, targets, {}, how, -100, smoothing); };
        return {loss(at::Reduction::Sum), loss(at::Reduction::None)};
      });
      // Logits are under 6 sqrt(width) and off by a rounding of such partial sums for each term, which a probability takes as a
      // relative error; so does the sum of exponentials with a rounding per column. The gradients sum them over columns or
      // tokens.
      const double rounding = 0x1p-24, size = 6 * std::sqrt(width);
      const double relative = (2 * (width + 4) * size + columns + 10) * rounding;
      const double bounds[] = {2 * relative * 6, 2 * relative * 6 * std::sqrt(tokens + 1.0),
                               (tokens + 1) * relative + rounding * std::abs(expected[2].item<double>()), relative};
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(found[i].sizes(), expected[i].sizes());
        if (found[i].numel() == 0) continue;
        EXPECT_LE(largest_difference(found[i], expected[i]), bounds[i])
            << tokens << ", " << width << ", " << columns << ", smoothing " << smoothing << " output " << i;
      }
    }
  }
}

TEST(CrossEntropy, ThreadsChangeNoBit) {
  torch::manual_seed(9);
  const Tensor targets = some_targets(700, 1100);
  const std::vector<Tensor> in = {torch::randn({700, 130}).requires_grad_(), torch::randn({1100, 130}).requires_grad_()};
  const auto results = [&](int threads) {
    at::set_num_threads(threads);
    const Losses found = cross_entropy_op(in[0], in[1], targets, 0.1);
    std::vector<Tensor> all = torch::autograd::grad({std::get<0>(found)}, in);
    all.push_back(std::get<0>(found).detach());
    return all;
  };
  const int before = at::get_num_threads();
  const std::vector<Tensor> one = results(1), two = results(2);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(at::equal(one[i], two[i])) << i;
}

TEST(CrossEntropy, AGraphMayBeUsedTwiceAndHasNoSecondDerivatives) {
  torch::manual_seed(10);
  const std::vector<Tensor> in = {torch::randn({6, 5}).requires_grad_(), torch::randn({9, 5}).requires_grad_()};
  const Tensor sum = std::get<0>(cross_entropy_op(in[0], in[1], some_targets(6, 9), 0));
  sum.backward({}, true);
  const Tensor once = in[1].grad().clone();
  sum.backward({}, true);
  EXPECT_TRUE(at::equal(in[1].grad(), 2 * once));
  const std::vector<Tensor> first = torch::autograd::grad({sum}, in, {}, true, true);
  EXPECT_TRUE(at::equal(first[1], once));
  EXPECT_THROW(torch::autograd::grad({first[1].sum()}, {in[1]}), std::exception);
  EXPECT_TRUE(at::equal(torch::autograd::grad({sum}, in)[1], once));
}

TEST(CrossEntropy, HasShapesOnMetaAndRefusesWhatDoesNotFit) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Losses shapes =
      cross_entropy_op(at::empty({3, 5}, meta), at::empty({7, 5}, meta), at::empty({3}, meta.dtype(at::kLong)), 0);
  EXPECT_EQ(std::get<0>(shapes).dim(), 0);
  EXPECT_EQ(std::get<1>(shapes).sizes(), (std::vector<int64_t>{3}));
  const auto refusal = [](const Tensor& hidden, const Tensor& weight, const Tensor& targets, double smoothing) -> std::string {
    try {
      cross_entropy_op(hidden, weight, targets, smoothing);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "accepted";
  };
  const Tensor hidden = torch::ones({2, 5}), weight = torch::ones({7, 5}), targets = torch::zeros({2}, at::kLong);
  const auto expect_refusal = [](const std::string& found, const std::string& part) {
    EXPECT_NE(found.find(part), std::string::npos) << found;
  };
  expect_refusal(refusal(hidden, torch::ones({7, 4}), targets, 0),
                 "weight has shape [7, 4], expected [7, 5] (columns of hidden)");
  expect_refusal(refusal(hidden, weight, torch::zeros({3}, at::kLong), 0),
                 "targets has shape [3], expected [2] (rows of hidden)");
  expect_refusal(refusal(hidden, weight, torch::zeros({2}), 0), "targets is Float, expected Long");
  expect_refusal(refusal(hidden, weight, targets, 1.5), "label_smoothing is 1.5, expected 0 to 1");
  expect_refusal(refusal(hidden, weight, targets + 7, 0), "target 0 is 7, expected 0 to 6 or -100 (ignored)");
  expect_refusal(refusal(hidden.to(at::kDouble), weight.to(at::kDouble), targets + 7, 0),
                 "target 0 is 7, expected 0 to 6 or -100 (ignored)");
}

// torch.ops.raffia.norm: {y, sum}. An undefined bias means RMS norm.
std::tuple<Tensor, Tensor> norm_op(const Tensor& x, const Tensor& added, const Tensor& weight, const Tensor& bias) {
  using Optional = c10::optional<Tensor>;
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("raffia::norm", "")
          .typed<std::tuple<Tensor, Tensor>(const Tensor&, const Optional&, const Tensor&, const Optional&, double)>();
  const auto given = [](const Tensor& tensor) { return tensor.defined() ? Optional(tensor) : Optional(); };
  return op.call(x, given(added), weight, given(bias), 1e-5);
}

Tensor norm_in_torch(const Tensor& sum, const Tensor& weight, const Tensor& bias) {
  if (bias.defined()) return at::layer_norm(sum, {sum.size(-1)}, weight, bias, 1e-5);
  return sum * at::rsqrt(sum.square().mean(-1, true) + 1e-5) * weight;
}

TEST(Norm, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(11);
  for (const bool biased : {false, true}) {
    std::vector<Named> in = {{"x", torch::randn({2, 3, 5})}, {"weight", torch::randn({5})}, {"added", torch::randn({2, 3, 5})}};
    if (biased) in.push_back({"bias", torch::randn({5})});
    expect_gradients(
        [&](const std::vector<Tensor>& each) -> std::vector<Tensor> {
          const auto [y, sum] = norm_op(each[0], each[2], each[1], biased ? each[3] : Tensor());
          return {y, sum};
        },
        in);
    in.erase(in.begin() + 2);
    expect_gradients(
        [&](const std::vector<Tensor>& each) -> std::vector<Tensor> {
          return {std::get<0>(norm_op(each[0], {}, each[1], biased ? each[2] : Tensor()))};
        },
        in);
  }
}

// Any strides, 0 and 1 tokens, several pieces of rows; the bits are those of any number of threads.
TEST(Norm, EqualsTorchInDouble) {
  torch::manual_seed(12);
  for (const auto& [tokens, columns] : {std::pair(0, 5), {1, 9}, {3, 17}, {65, 40}, {700, 130}}) {
    for (const bool biased : {false, true}) {
      for (const bool adds : {false, true}) {
        const auto drawn = [&] { return torch::randn({2, columns, tokens}).transpose(1, 2); };
        const std::vector<Tensor> exact = {drawn(), torch::randn({columns}), adds ? drawn() : Tensor(),
                                           biased ? torch::randn({columns}) : Tensor()};
        const Tensor dy = drawn(), dsum = drawn();
        const auto results = [&](at::ScalarType type, int threads, const auto& op) {
          at::set_num_threads(threads);
          std::vector<Tensor> leaves, given;
          for (const Tensor& each : exact) {
            given.push_back(each.defined() ? each.to(type).detach().requires_grad_() : Tensor());
            if (each.defined()) leaves.push_back(given.back());
          }
          const auto [y, sum] = op(given[0], given[2], given[1], given[3]);
          std::vector<Tensor> all = torch::autograd::grad({y, sum}, leaves, {dy.to(type), dsum.to(type)});
          all.push_back(y.detach());
          all.push_back(sum.detach());
          return all;
        };
        const int before = at::get_num_threads();
        const auto found = results(at::kFloat, 1, norm_op), again = results(at::kFloat, 2, norm_op);
        const auto expected =
            results(at::kDouble, 1, [](const Tensor& x, const Tensor& added, const Tensor& weight, const Tensor& bias) {
              const Tensor sum = added.defined() ? x + added : x;
              return std::tuple(norm_in_torch(sum, weight, bias), sum);
            });
        at::set_num_threads(before);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(at::equal(found[i], again[i])) << i;
          ASSERT_EQ(found[i].sizes(), expected[i].sizes());
          if (found[i].numel() == 0) continue;
          // Normal inputs, of which none is over 6: E roundings in the statistics of a row and a dozen after them, in terms under
          // 6^3; the gradients of weight and bias sum as many as there are tokens.
          const bool is_sum = i == 1 || (biased && i == (adds ? 3U : 2U));
          const double rounding = 0x1p-24, terms = is_sum ? 2.0 * tokens : 1.0;
          const double bound = (columns + 12 + terms) * rounding * 36 * 6 * std::sqrt(terms);
          EXPECT_LE(largest_difference(found[i], expected[i]), bound)
              << tokens << ", " << columns << ", biased " << biased << ", adds " << adds << " output " << i;
        }
      }
    }
  }
}

// Both summands have one gradient: adding to that of one must leave the other alone.
TEST(Norm, GradientsOfTheSummandsAreKeptApart) {
  torch::manual_seed(13);
  const std::vector<Tensor> in = {torch::randn({2, 3, 5}).requires_grad_(), torch::randn({2, 3, 5}).requires_grad_(),
                                  torch::randn({5}).requires_grad_()};
  const Tensor y = std::get<0>(norm_op(in[0], in[1], in[2], {})).square().sum();
  y.backward({}, true);
  const Tensor once = in[0].grad().clone();
  y.backward({});
  EXPECT_TRUE(at::equal(in[0].grad(), 2 * once));
  EXPECT_TRUE(at::equal(in[1].grad(), 2 * once));
}

// The op finds wrong ids before it computes, wherever they are.
TEST(CrossEntropy, NamesTheFirstWrongTarget) {
  torch::manual_seed(16);
  const Tensor hidden = torch::randn({700, 3}), weight = torch::randn({1100, 3});
  const Tensor targets = torch::zeros({700}, at::kLong);
  targets[640] = targets[690] = 1100;
  for (const auto type : {at::kFloat, at::kDouble}) {
    try {
      cross_entropy_op(hidden.to(type), weight.to(type), targets, 0);
      ADD_FAILURE() << "not refused";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("target 640 is 1100, expected 0 to 1099 or -100 (ignored)"), std::string::npos)
          << error.what();
    }
  }
}

TEST(CrossEntropy, CallersMayChangeTheOutputs) {
  torch::manual_seed(17);
  const Tensor hidden = torch::randn({5, 3}).requires_grad_(), weight = torch::randn({4, 3}).requires_grad_();
  const Tensor targets = torch::zeros({5}, at::kLong);
  const auto [sum, losses] = cross_entropy_op(hidden, weight, targets, 0);
  const Tensor once = torch::autograd::grad({sum}, {hidden}, {}, true)[0].clone();
  losses.mul_(0);
  Tensor mean = sum;
  mean.div_(5);
  EXPECT_LE(largest_difference(torch::autograd::grad({mean}, {hidden})[0], once / 5), 1e-6);
}

// Second derivatives are refused, not left out: also where the gradient of the output is a constant.
TEST(Norm, SecondDerivativesAreRefused) {
  const Tensor x = torch::randn({2, 5}).requires_grad_(), added = torch::randn({2, 5}), weight = torch::randn({5});
  const Tensor y = std::get<0>(norm_op(x, added, weight, {})).sum();
  const Tensor gradient = torch::autograd::grad({y}, {x}, {}, true, true)[0];
  EXPECT_THROW(gradient.square().sum().backward(), std::runtime_error);
}

// torch.ops.raffia.swiglu.
Tensor swiglu_op(const Tensor& gate, const Tensor& up) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("raffia::swiglu", "").typed<Tensor(const Tensor&, const Tensor&)>();
  return op.call(gate, up);
}

TEST(Swiglu, GradientsAreThoseOfFiniteDifferences) {
  torch::manual_seed(14);
  expect_gradients([](const std::vector<Tensor>& in) -> std::vector<Tensor> { return {swiglu_op(in[0], in[1])}; },
                   {{"gate", torch::randn({2, 3, 5})}, {"up", torch::randn({2, 3, 5})}});
}

// Any strides, no rows, several pieces of rows; the bits are those of any number of threads.
TEST(Swiglu, EqualsTorchInDouble) {
  torch::manual_seed(15);
  for (const auto& [tokens, columns] : {std::pair(0, 5), {1, 9}, {65, 40}, {700, 130}}) {
    const auto drawn = [&] { return torch::randn({2, columns, tokens}).transpose(1, 2); };
    const Tensor gate = drawn(), up = drawn(), dy = drawn();
    const auto results = [&](at::ScalarType type, int threads, const auto& op) {
      at::set_num_threads(threads);
      const std::vector<Tensor> leaves = {gate.to(type).detach().requires_grad_(), up.to(type).detach().requires_grad_()};
      const Tensor y = op(leaves[0], leaves[1]);
      std::vector<Tensor> all = torch::autograd::grad({y}, leaves, {dy.to(type)});
      all.push_back(y.detach());
      return all;
    };
    const int before = at::get_num_threads();
    const auto found = results(at::kFloat, 1, swiglu_op), again = results(at::kFloat, 2, swiglu_op);
    const auto expected = results(at::kDouble, 1, [](const Tensor& g, const Tensor& u) { return at::silu(g) * u; });
    at::set_num_threads(before);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], again[i])) << i;
      ASSERT_EQ(found[i].sizes(), expected[i].sizes());
      if (found[i].numel() == 0) continue;
      // 16 roundings, in terms that are products of two normal numbers and of a slope under 2, or of three: none over 6^3.
      EXPECT_LE(largest_difference(found[i], expected[i]), 16 * 0x1p-24 * 216) << tokens << ", " << columns << " output " << i;
    }
  }
}

TEST(TorchOps, RowsWithoutColumnsAreNoWork) {
  const Tensor empty = torch::zeros({3, 0}).requires_grad_(), weight = torch::zeros({0}).requires_grad_();
  const auto [y, sum] = norm_op(empty, empty, weight, weight);
  EXPECT_EQ(torch::autograd::grad({y}, {empty}, {torch::zeros({3, 0})})[0].sizes(), empty.sizes());
  EXPECT_EQ(torch::autograd::grad({swiglu_op(empty, empty)}, {empty}, {torch::zeros({3, 0})})[0].sizes(), empty.sizes());
  const auto [loss, losses] = cross_entropy_op(torch::zeros({3, 2}), torch::zeros({0, 2}), torch::full({3}, -100, at::kLong), 0);
  EXPECT_EQ(loss.item<double>(), 0);
}

TEST(TorchOps, ErrorsOfTheCoreReachTheCaller) {
  const Case in = as_float(Case());
  try {
    eva(in.q, in.k, in.v, {.samples = 0});
    FAIL() << "eva without samples was accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("samples is 0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace raffia::ops
