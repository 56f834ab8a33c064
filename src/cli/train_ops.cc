#include "cli/train_ops.h"

#include <torch/autograd.h>

#include <utility>
#include <vector>

#include "cli/op_facts.h"
#include "cli/op_options.h"
#include "cli/plain_torch.h"
#include "raffia/torch/ops.h"
#include "torch/libtorch.h"

namespace raffia::cli {

using at::Tensor;

namespace {

// The op of the other benchmarks that counts the same FLOP.
Op counted_as(TrainOp op) {
  switch (op) {
    case TrainOp::softmax:
    case TrainOp::torch_softmax:
    case TrainOp::window:
      return Op::softmax;
    case TrainOp::rfa:
      return Op::rfa;
    case TrainOp::rfa_gate:
    case TrainOp::torch_chunked:
      return Op::rfa_gate;
    case TrainOp::hybrid:
      return Op::hybrid;
    case TrainOp::lara:
      return Op::lara;
    case TrainOp::ra:
      return Op::ra;
    case TrainOp::eva:
      return Op::eva;
  }
  return Op::softmax;
}

OpForm form_of(TrainOp op) { return {.op = counted_as(op), .input = OpInput::qk, .causal = true}; }

constexpr int64_t kWindowsSeen = 2;  // window: the own one and the one before

}  // namespace

Estimator estimator_of(const BenchShape& shape, TrainOp op) {
  switch (op) {
    case TrainOp::softmax:
    case TrainOp::torch_softmax:
      return {.kind = EstimatorKind::softmax};
    case TrainOp::window:
      return {.kind = EstimatorKind::window, .window = shape.window, .before = kWindowsSeen - 1};
    case TrainOp::rfa:
      return {.kind = EstimatorKind::rfa, .samples = shape.random_features};
    case TrainOp::rfa_gate:
    case TrainOp::torch_chunked:
      return {.kind = EstimatorKind::rfa_gate, .samples = shape.random_features};
    case TrainOp::hybrid:
      return {.kind = EstimatorKind::hybrid, .samples = shape.random_features, .window = shape.window};
    case TrainOp::lara:
      return {.kind = EstimatorKind::lara, .samples = shape.samples, .window = shape.window, .chunk = shape.chunk};
    case TrainOp::ra:
      return {.kind = EstimatorKind::ra, .samples = shape.samples};
    case TrainOp::eva:
      return {.kind = EstimatorKind::eva,
              .samples = shape.samples,
              .window = shape.window,
              .chunk = shape.chunk,
              .features = shape.random_features};
  }
  return {};
}

Record describe(const BenchShape& shape, TrainOp op, int64_t length, int64_t threads) {
  Record record = describe(shape, form_of(op), length, threads);
  record.op = name_in(kTrainOps, op);
  record.pass = name_in(kPasses, Pass::forward_backward);
  if (op == TrainOp::window) {
    record.window = shape.window;
    record.state_bytes = *record.state_bytes / length * std::min(length, kWindowsSeen * shape.window);
  }
  return record;
}

double layer_flops(const BenchShape& shape, TrainOp op, int64_t length) {
  const double flops = attention_flops(shape, form_of(op), Pass::forward_backward, length);
  if (op != TrainOp::window) return flops;
  // As many keys as the exact part of hybrid, and not half of the sequence.
  const double seen = (static_cast<double>(kWindowsSeen) - 0.5) * static_cast<double>(shape.window);
  return flops * seen / (0.5 * static_cast<double>(length));
}

class LayerInputs {
 public:
  LayerInputs(const BenchShape& shape, int64_t length) : shape_(shape), length_(length) {}

  struct Tensors {
    Tensor q, k, v, gates, sigma, log_scale;  // of these there are gradients
    Tensor draws, dout;
  };

  const BenchShape& shape() const { return shape_; }
  const Tensors& tensors() {
    if (!tensors_.q.defined()) make();
    return tensors_;
  }
  ops::Map map() { return {.kind = MapKind::trig, .weight = tensors().draws, .sigma = tensors().sigma}; }

 private:
  void make() {
    torch::manual_seed(shape_.seed);
    const int64_t heads = shape_.heads, dim = shape_.head_dim;
    const auto leaf = [](Tensor values) { return values.requires_grad_(); };
    const auto tokens = [&] { return torch::randn({shape_.batch, length_, heads, dim}); };
    tensors_ = {.q = leaf(tokens()),
                .k = leaf(tokens()),
                .v = leaf(tokens()),
                .gates = leaf(torch::rand({shape_.batch, length_, heads}) * 5 + 1),
                .sigma = leaf(torch::ones({heads, dim})),
                .log_scale = leaf(torch::full({heads}, kHybridLogScale)),
                .draws = torch::randn({heads, shape_.random_features, dim}),
                .dout = tokens()};
  }

  BenchShape shape_;
  int64_t length_;
  Tensors tensors_;
};

std::shared_ptr<LayerInputs> make_layer_inputs(const BenchShape& shape, int64_t length) {
  return std::make_shared<LayerInputs>(shape, length);
}

namespace {

Tensor forward(TrainOp op, LayerInputs& inputs) {
  const auto& in = inputs.tensors();
  const BenchShape& shape = inputs.shape();
  switch (op) {
    case TrainOp::softmax:
      return ops::softmax(in.q, in.k, in.v, {.causal = true});
    case TrainOp::torch_softmax:
      return plain_softmax(in.q, in.k, in.v);
    case TrainOp::window:
      return ops::softmax(in.q, in.k, in.v, {.causal = true, .window = shape.window, .before = kWindowsSeen - 1});
    case TrainOp::rfa:
      return ops::causal_rfa(in.q, in.k, in.v, inputs.map()).out;
    case TrainOp::rfa_gate:
      return ops::rfa_gate(in.q, in.k, in.v, in.gates, inputs.map()).out;
    case TrainOp::torch_chunked:
      return plain_gated(in.q, in.k, in.v, in.gates, in.draws, in.sigma);
    case TrainOp::hybrid:
      return ops::hybrid({.q = in.q, .k = in.k, .v = in.v, .gate_logits = in.gates, .log_scale = in.log_scale}, inputs.map(), {},
                         hybrid_options(shape))
          .out;
    case TrainOp::lara:
      return ops::causal_lara(in.q, in.k, in.v, {}, causal_lara_options(shape)).out;
    case TrainOp::ra:
      return ops::ra(in.q, in.k, in.v, ra_options(shape, true));
    case TrainOp::eva:
      return ops::causal_eva(in.q, in.k, in.v, {}, causal_eva_options(shape)).out;
  }
  return {};
}

std::vector<Tensor> differentiated(TrainOp op, const LayerInputs::Tensors& in) {
  std::vector<Tensor> leaves = {in.q, in.k, in.v};
  const Op form = counted_as(op);
  if (has_map(form)) leaves.push_back(in.sigma);
  if (form == Op::rfa_gate || form == Op::hybrid) leaves.push_back(in.gates);
  if (form == Op::hybrid) leaves.push_back(in.log_scale);
  return leaves;
}

}  // namespace

std::function<void()> prepare_layer(TrainOp op, const std::shared_ptr<LayerInputs>& inputs, int threads) {
  return [op, inputs, threads] {
    at::set_num_threads(threads);
    const auto& in = inputs->tensors();
    const Tensor out = forward(op, *inputs);
    torch::autograd::grad({out}, differentiated(op, in), {in.dout});
  };
}

}  // namespace raffia::cli
