#include <gtest/gtest.h>

#include "raffia/error.h"
#include "torch/gradcheck.h"
#include "torch/libtorch.h"
#include "torch/ops_case.h"

namespace raffia::ops {
namespace {

using torch::indexing::Slice;

constexpr MapKind kKinds[] = {MapKind::identity,  MapKind::trig, MapKind::arccos, MapKind::positive,
                              MapKind::positive2, MapKind::elu,  MapKind::relu};

// An initial state as a text before leaves it.
Tensor some_state(const Map& map, bool gated) {
  const Case before(9, 3);
  return (gated ? rfa_gate(before.q, before.k, before.v, before.gate, map) : causal_rfa(before.q, before.k, before.v, map)).state;
}

// The parameters of `map` that have gradients, after the other inputs.
void add_parameters(std::vector<Named>& inputs, const Map& map) {
  if (map.sigma.defined()) inputs.push_back({"sigma", map.sigma});
  if (map.kind == MapKind::relu) {
    inputs.push_back({"weight", map.weight});
    inputs.push_back({"bias", map.bias});
  }
}

Map with_parameters(const Map& map, const std::vector<Tensor>& in, size_t first) {
  Map result = map;
  if (map.sigma.defined()) result.sigma = in[first];
  if (map.kind == MapKind::relu) {
    result.weight = in[first];
    result.bias = in[first + 1];
  }
  return result;
}

// identity: features that keep denominators away from the clamp, where finite differences have a kink.
Case case_for(MapKind kind, int64_t length) {
  Case in(length);
  if (kind == MapKind::identity) {
    in.q = in.q.abs();
    in.k = in.k.abs();
  }
  return in;
}

TEST(RfaGateOp, GradientsOfEveryInputAreThoseOfFiniteDifferences) {
  for (MapKind kind : kKinds) {
    SCOPED_TRACE(std::string(name_of(kind)));
    const Case in = case_for(kind, 19);
    const Map map = in.map(kind);
    std::vector<Named> inputs{{"q", in.q}, {"k", in.k}, {"v", in.v}, {"gate_logits", in.gate}, {"state", some_state(map, true)}};
    // Mass and log decay are constants to the gradients: the last two numbers of a head are left out.
    inputs[4].tensor = inputs[4].tensor.slice(2, 0, -2);
    const Tensor rest = some_state(map, true).slice(2, -2);
    add_parameters(inputs, map);
    const auto op = [&](const std::vector<Tensor>& x) -> std::vector<Tensor> {
      const Carried result =
          rfa_gate(x[0], x[1], x[2], x[3], with_parameters(map, x, 5), torch::cat({x[4], rest}, 2), in.valid, 0.0);
      return {result.out, result.state.slice(2, 0, -2)};
    };
    expect_gradients(op, inputs, kind == MapKind::trig ? 2e-3 : 2e-4);
  }
}

}  // namespace
}  // namespace raffia::ops
