#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

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
