// Gated attention over tensors, in two parts: the second continues from the state of the first.
//
// Without CMake:  c++ -std=c++20 tensors.cc $(pkg-config --cflags --libs raffia_torch) -o tensors
#include <raffia/torch/ops.h>

#include <cstdio>

int main() {
  namespace ops = raffia::ops;
  const at::Tensor q = at::randn({2, 128, 8, 64}), k = at::randn({2, 128, 8, 64}), v = at::randn({2, 128, 8, 64});
  const at::Tensor gate_logits = at::full({2, 128, 8}, 3.0);
  const ops::Map map{.kind = raffia::MapKind::trig, .weight = at::randn({8, 64, 64}), .sigma = at::ones({8, 64})};

  const ops::Carried whole = ops::rfa_gate(q, k, v, gate_logits, map);
  const auto part = [&](int64_t begin, int64_t end, const at::Tensor& state) {
    const auto tokens = [&](const at::Tensor& x) { return x.slice(1, begin, end); };
    return ops::rfa_gate(tokens(q), tokens(k), tokens(v), tokens(gate_logits), map, state);
  };
  const ops::Carried first = part(0, 64, {}), second = part(64, 128, first.state);

  const bool same = at::allclose(at::cat({first.out, second.out}, 1), whole.out, 1e-3, 1e-4);
  std::printf("128 tokens at once and in two parts: %s\n", same ? "the same" : "NOT the same");
  return same ? 0 : 1;
}
