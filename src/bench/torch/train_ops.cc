#include "bench/torch/train_ops.h"

#include <torch/autograd.h>

#include <utility>
#include <vector>

#include "bench/torch/plain_torch.h"
#include "raffia/torch/ops.h"
#include "torch/estimators/registry.h"
#include "torch/libtorch.h"

namespace raffia::internal::bench {

namespace {

using at::Tensor;

// Of these there are gradients, where the op has them; and two constants.
struct LayerTensors {
  Tensor q, k, v, gates, sigma, log_scale;
  Tensor draws, dout;
};

struct PlainTorch {
  const char* name;
  const char* counted_as;  // the estimator that it computes
  Tensor (*attend)(const LayerTensors& in);
};
constexpr PlainTorch kPlainTorch[] = {
    {"torch_softmax", "softmax", [](const LayerTensors& in) { return plain_softmax(in.q, in.k, in.v); }},
    {"torch_chunked", "rfa_gate",
     [](const LayerTensors& in) { return plain_gated(in.q, in.k, in.v, in.gates, in.draws, in.sigma); }}};

}  // namespace

std::vector<std::string> plain_torch_names() {
  std::vector<std::string> names;
  for (const PlainTorch& plain : kPlainTorch) names.emplace_back(plain.name);
  return names;
}

TrainOp train_op_of(const BenchShape& shape, const std::string& spec) {
  for (const PlainTorch& plain : kPlainTorch) {
    if (spec != plain.name) continue;
    TrainOp op{.form = form_of(shape, plain.counted_as, OpInput::qk, true), .is_plain = true};
    op.form.name = spec;
    return op;
  }
  return {.form = form_of(shape, spec, OpInput::qk, true)};
}

Record describe(const BenchShape& shape, const TrainOp& op, int64_t length, int64_t threads) {
  Record record = describe(shape, op.form, length, threads);
  record.pass = name_in(kPasses, Pass::forward_backward);
  return record;
}

double layer_flops(const BenchShape& shape, const TrainOp& op, int64_t length) {
  return attention_flops(shape, op.form, Pass::forward_backward, length);
}

void use_threads(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
}

class LayerInputs {
 public:
  LayerInputs(const BenchShape& shape, int64_t length) : shape_(shape), length_(length) {}

  const BenchShape& shape() const { return shape_; }
  const LayerTensors& tensors() {
    if (!tensors_.q.defined()) make();
    return tensors_;
  }

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
                .log_scale = leaf(torch::full({heads}, -2.0)),
                .draws = torch::randn({heads, shape_.random_features, dim}),
                .dout = tokens()};
  }

  BenchShape shape_;
  int64_t length_;
  LayerTensors tensors_;
};

std::shared_ptr<LayerInputs> make_layer_inputs(const BenchShape& shape, int64_t length) {
  return std::make_shared<LayerInputs>(shape, length);
}

namespace {

Tensor forward(const TrainOp& op, const LayerTensors& in) {
  for (const PlainTorch& plain : kPlainTorch) {
    if (op.is_plain && op.form.name == plain.name) return plain.attend(in);
  }
  const Estimator& estimator = op.form.estimator;
  const EstimatorTraits traits = op.form.traits();
  ops::AttendTensors tensors{.q = in.q, .k = in.k, .v = in.v};
  if (traits.has_map) tensors.map = {.kind = MapKind::trig, .weight = in.draws, .sigma = in.sigma};
  if (traits.is_gated) tensors.gate_logits = in.gates;
  if (traits.blends) tensors.log_scale = in.log_scale;
  return ops::tensors_of(estimator.kind).attend(estimator, tensors, true).out;
}

std::vector<Tensor> differentiated(const TrainOp& op, const LayerTensors& in) {
  std::vector<Tensor> leaves = {in.q, in.k, in.v};
  const EstimatorTraits traits = op.form.traits();
  if (traits.has_map) leaves.push_back(in.sigma);
  if (traits.is_gated) leaves.push_back(in.gates);
  if (traits.blends) leaves.push_back(in.log_scale);
  return leaves;
}

}  // namespace

std::function<void()> prepare_layer(const TrainOp& op, const std::shared_ptr<LayerInputs>& inputs, int threads) {
  return [op, inputs, threads] {
    use_threads(threads);
    const LayerTensors& in = inputs->tensors();
    const Tensor out = forward(op, in);
    torch::autograd::grad({out}, differentiated(op, in), {in.dout});
  };
}

}  // namespace raffia::internal::bench
