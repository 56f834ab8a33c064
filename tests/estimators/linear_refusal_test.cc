// Every argument of the linear ops that does not fit is refused, with a message that begins with the function and names the
// argument.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "estimators/linear_case.h"

namespace raffia::internal::linear_tests {
namespace {

// One call with everything right, of which a test spoils one part.
struct Call {
  explicit Call(const Case& c)
      : q(c.q_view()),
        k(c.k_view()),
        v(c.v_view()),
        gate(c.gate_view()),
        state(c.initial),
        floats(4096),
        record(4096),
        out(floats.data(), c.out_shape()),
        dout(c.dout_view()),
        map(&c.map) {
    gradients.q = MutView4(floats.data(), c.q_shape());
    gradients.k = MutView4(floats.data(), c.k_shape());
    gradients.v = MutView4(floats.data(), c.v_shape());
    if (c.shape.op == Op::gated) gradients.gate_logits = MutView3(floats.data(), c.gate_shape());
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  View4 q, k, v;
  View3 gate;
  State state;
  std::vector<float> floats, record;
  MutView4 out;
  View4 dout;
  AttentionGradients gradients;
  AttentionOptions options;
  std::span<float> to_record;  // of the forward pass
  const FeatureMap* map;
};

void forward(Op op, Call& with) {
  switch (op) {
    case Op::rfa:
      rfa_attention(with.q, with.k, with.v, *with.map, with.out, with.options, with.to_record);
      break;
    case Op::causal:
      causal_attention(with.q, with.k, with.v, *with.map, with.state, with.out, with.options, with.to_record);
      break;
    case Op::gated:
      gated_attention(with.q, with.k, with.v, with.gate, *with.map, with.state, with.out, with.options, with.to_record);
      break;
  }
}

void backward(Op op, Call& with) {
  switch (op) {
    case Op::rfa:
      return rfa_attention_backward(with.q, with.k, with.v, *with.map, with.out, with.record, with.dout, with.gradients,
                                    with.options);
    case Op::causal:
      return causal_attention_backward(with.q, with.k, with.v, *with.map, with.out, with.record, with.dout, with.gradients,
                                       with.options);
    case Op::gated:
      return gated_attention_backward(with.q, with.k, with.v, with.gate, *with.map, with.out, with.record, with.dout,
                                      with.gradients, with.options);
  }
}

class Refusal : public testing::TestWithParam<Op> {
 protected:
  template <class Run, class Spoil>
  void expect_refused(const std::string& function, const std::string& argument, const Run& run, const Spoil& spoil) {
    Call with(case_);
    spoil(with);
    const std::string message = refusal_of([&] { run(GetParam(), with); });
    EXPECT_EQ(message.rfind(function + ": ", 0), 0U) << "for " << argument << ": " << message;
    EXPECT_NE(message.find(argument), std::string::npos) << "for " << argument << ": " << message;
  }
  template <class Spoil>
  void refuses(const std::string& argument, const Spoil& spoil) {
    expect_refused(name() + "_attention", argument, forward, spoil);
  }
  template <class Spoil>
  void refuses_back(const std::string& argument, const Spoil& spoil) {
    expect_refused(name() + "_attention_backward", argument, backward, spoil);
  }
  std::string name() const { return name_of_op(GetParam()); }

  Case case_{Shape{.op = GetParam(), .length = 10, .batch = 2, .heads = 4, .groups = 2, .seed = 91}};
  std::vector<double> wrong_ = std::vector<double>(4096);
};

INSTANTIATE_TEST_SUITE_P(Ops, Refusal, testing::ValuesIn(kOps), [](const auto& of) { return std::string(name_of_op(of.param)); });

TEST_P(Refusal, NamesViewsOfTheWrongShape) {
  refuses("q has", [](Call& with) { with.q = with.q.slice(0, 0, 1); });
  refuses("q has", [](Call& with) { with.q = with.q.slice(2, 0, 3); });
  refuses("q has", [](Call& with) { with.q = with.q.slice(3, 0, 4); });
  if (GetParam() != Op::rfa) refuses("q has", [](Call& with) { with.q = with.q.slice(1, 0, 9); });
  refuses("k has", [](Call& with) { with.k = with.k.slice(2, 0, 1); });
  refuses("k has", [](Call& with) { with.k = with.k.slice(3, 0, 4); });
  refuses("v has", [](Call& with) { with.v = with.v.slice(0, 0, 1); });
  refuses("v has", [](Call& with) { with.v = with.v.slice(1, 0, 9); });
  refuses("v has", [](Call& with) { with.v = with.v.slice(2, 0, 1); });
  refuses("v has", [](Call& with) { with.v = with.v.slice(3, 0, 0); });
  for (size_t axis = 0; axis < 4; ++axis) {
    refuses("out has", [&](Call& with) { with.out = with.out.slice(axis, 0, with.out.extent(axis) - 1); });
  }
  if (GetParam() != Op::gated) return;
  for (size_t axis = 0; axis < 3; ++axis) {
    refuses("gate_logits has", [&](Call& with) { with.gate = with.gate.slice(axis, 0, with.gate.extent(axis) - 1); });
  }
}

TEST_P(Refusal, NamesViewsThatAreAbsent) {
  refuses("q has", [](Call& with) { with.q = {}; });
  refuses("k has", [](Call& with) { with.k = {}; });
  refuses("v has", [](Call& with) { with.v = {}; });
  refuses("out has", [](Call& with) { with.out = {}; });
  refuses_back("q has", [](Call& with) { with.q = {}; });
  refuses_back("k has", [](Call& with) { with.k = {}; });
  refuses_back("v has", [](Call& with) { with.v = {}; });
  refuses_back("out has", [](Call& with) { with.out = {}; });
  refuses_back("dout has", [](Call& with) { with.dout = {}; });
  if (GetParam() == Op::gated) refuses("gate_logits has", [](Call& with) { with.gate = {}; });
  if (GetParam() == Op::gated) refuses_back("gate_logits has", [](Call& with) { with.gate = {}; });
}

TEST_P(Refusal, NamesViewsOfTheWrongType) {
  refuses("q has", [&](Call& with) { with.q = View4(wrong_.data(), with.q.shape()); });
  refuses("k has", [&](Call& with) { with.k = View4(wrong_.data(), with.k.shape()); });
  refuses("v has", [&](Call& with) { with.v = View4(wrong_.data(), with.v.shape()); });
  refuses("out has", [&](Call& with) { with.out = MutView4(wrong_.data(), with.out.shape()); });
  if (GetParam() == Op::gated)
    refuses("gate_logits has", [&](Call& with) { with.gate = View3(wrong_.data(), with.gate.shape()); });
  refuses("valid", [&](Call& with) { with.options.layout.valid = View2(wrong_.data(), {2, 10}); });
}

TEST_P(Refusal, NamesOptionsThatDoNotFit) {
  const std::vector<uint8_t> valid(20, 1);
  refuses("valid", [&](Call& with) { with.options.layout.valid = View2(valid.data(), {2, 9}); });
  refuses("eps", [](Call& with) { with.options.eps = -1e-3F; });
  refuses("eps", [](Call& with) { with.options.eps = std::numeric_limits<float>::quiet_NaN(); });
  refuses("threads", [](Call& with) { with.options.run.threads = -1; });
  refuses("record", [](Call& with) { with.to_record = std::span(with.record).first(3); });
  const std::vector<int64_t> few = {10}, many = {10, 11}, negative = {-1, 10}, right = {10, 10}, offsets = {0, 10};
  refuses("lengths", [&](Call& with) { with.options.layout.lengths = few; });
  refuses("lengths", [&](Call& with) { with.options.layout.lengths = many; });
  refuses("lengths", [&](Call& with) { with.options.layout.lengths = negative; });
  refuses("cu_seqlens", [&](Call& with) { with.options.layout.cu_seqlens = offsets; });  // with a batch of 2
  refuses("cu_seqlens", [&](Call& with) { with.options.layout.lengths = right, with.options.layout.cu_seqlens = offsets; });
  refuses("cu_seqlens_k", [&](Call& with) { with.options.layout.cu_seqlens_k = offsets; });
}

TEST_P(Refusal, NamesOffsetsThatDoNotFit) {
  const Case packed({.op = GetParam(), .length = 10, .heads = 4, .groups = 2, .seed = 92});
  const auto refused = [&](const std::vector<int64_t>& offsets, const std::vector<int64_t>& of_keys, const char* argument) {
    Call with(packed);
    with.options.layout.cu_seqlens = offsets;
    with.options.layout.cu_seqlens_k = of_keys;
    with.state = packed.empty_state(static_cast<int64_t>(offsets.size()) - 1);
    const std::string message = refusal_of([&] { forward(GetParam(), with); });
    EXPECT_NE(message.find(argument), std::string::npos) << message;
  };
  refused({0, 9}, {}, "cu_seqlens");
  refused({1, 10}, {}, "cu_seqlens");
  refused({0, 7, 3, 10}, {}, "cu_seqlens");
  refused({0, 5, 10}, {0, 10}, "cu_seqlens_k");
  refused({0, 5, 10}, {0, 5, 9}, "cu_seqlens_k");
  // A causal query is a token like its key: their sequences cannot differ.
  if (GetParam() != Op::rfa) refused({0, 5, 10}, {0, 4, 10}, "cu_seqlens_k");
}

TEST_P(Refusal, NamesStatesThatDoNotFit) {
  if (GetParam() == Op::rfa) return;
  for (const StateShape& shape :
       {StateShape{1, 2, 14, 6}, StateShape{2, 1, 14, 6}, StateShape{2, 2, 13, 6}, StateShape{2, 2, 14, 5}}) {
    State other(shape);
    refuses("state has", [&](Call& with) { with.state = other; });
    refuses_back("state has", [&](Call& with) { with.gradients.state = &other; });
  }
}

TEST_P(Refusal, NamesGradientsThatDoNotFit) {
  refuses_back("dout has", [](Call& with) { with.dout = with.dout.slice(1, 0, 9); });
  refuses_back("out has", [](Call& with) { with.out = with.out.slice(3, 0, 5); });
  refuses_back("record", [](Call& with) { with.record.resize(3); });
  refuses_back("gradients.q", [](Call& with) { with.gradients.q = with.gradients.q.slice(3, 0, 4); });
  refuses_back("gradients.k", [](Call& with) { with.gradients.k = with.gradients.k.slice(1, 0, 9); });
  refuses_back("gradients.v", [](Call& with) { with.gradients.v = with.gradients.v.slice(2, 0, 1); });
  refuses_back("gradients.v", [&](Call& with) { with.gradients.v = MutView4(wrong_.data(), with.gradients.v.shape()); });
  refuses_back("sigma", [](Call& with) { with.gradients.map.sigma = MutView2(with.floats.data(), {1, 5}); });
  refuses_back("weight", [](Call& with) { with.gradients.map.weight = MutView3(with.floats.data(), {2, 14, 5}); });
  if (GetParam() == Op::gated) {
    refuses_back("gradients.gate_logits",
                 [](Call& with) { with.gradients.gate_logits = with.gradients.gate_logits.slice(2, 0, 1); });
  } else {
    refuses_back("gate", [](Call& with) { with.gradients.gate_logits = MutView3(with.floats.data(), {2, 10, 2}); });
  }
}

TEST(FoldKeys, NamesWhatDoesNotFit) {
  const Case c({.length = 10, .batch = 2, .heads = 4, .groups = 2, .seed = 93});
  const auto refused = [&](const char* argument, View4 k, View4 v, View3 gate, State state) {
    const std::string message = refusal_of([&] { fold_keys(k, v, gate, c.map, state); });
    EXPECT_EQ(message.rfind("fold_keys: ", 0), 0U) << "for " << argument << ": " << message;
    EXPECT_NE(message.find(argument), std::string::npos) << message;
  };
  refused("k has", c.k_view().slice(3, 0, 4), c.v_view(), c.gate_view(), c.initial);
  refused("v has", c.k_view(), c.v_view().slice(1, 0, 4), c.gate_view(), c.initial);
  refused("gate_logits has", c.k_view(), c.v_view(), c.gate_view().slice(1, 0, 4), c.initial);
  refused("state has", c.k_view(), c.v_view(), c.gate_view(), c.empty_state(1));
  refused("k has", {}, c.v_view(), c.gate_view(), c.initial);
}

TEST(ReadState, NamesWhatDoesNotFit) {
  const Case c({.length = 10, .batch = 2, .heads = 4, .groups = 2, .seed = 94});
  std::vector<float> floats(c.dout.size());
  const MutView4 out(floats.data(), c.out_shape());
  const auto refused = [&](const char* argument, View4 q, MutView4 to, const State& state) {
    const std::string message = refusal_of([&] { read_state(q, c.map, state, to); });
    EXPECT_EQ(message.rfind("read_state: ", 0), 0U) << "for " << argument << ": " << message;
    EXPECT_NE(message.find(argument), std::string::npos) << message;
  };
  refused("q has", c.q_view().slice(3, 0, 4), out, c.initial);
  refused("q has", c.q_view().slice(2, 0, 3), out, c.initial);
  refused("out has", c.q_view(), out.slice(1, 0, 3), c.initial);
  refused("out has", c.q_view(), {}, c.initial);
  refused("state has", c.q_view(), out, c.empty_state(1));
}

}  // namespace
}  // namespace raffia::internal::linear_tests
