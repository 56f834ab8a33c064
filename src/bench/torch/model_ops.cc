// Whole language models for `raffia bench train --what model`.
#include <torch/library.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "bench/torch/plain_torch.h"
#include "bench/torch/train_ops.h"
#include "torch/libtorch.h"
#include "torch/nn/models.h"

namespace raffia::internal::bench {
namespace {

using at::Tensor;

// Models choose the streams of their layers themselves.
Estimator plain_seed(Estimator estimator) {
  estimator.seed = 0;
  return estimator;
}

ModelConfig config_of(const BenchShape& shape, const ModelShape& model, const TrainOp& op) {
  return {.task = Task::lm,
          .vocabulary = model.vocabulary,
          .width = shape.heads * shape.head_dim,
          .heads = shape.heads,
          .layers = model.layers,
          .estimators = {plain_seed(op.form.estimator)}};
}

using OptionalTensor = c10::optional<Tensor>;

Tensor softmax_of_torch(const Tensor& q, const Tensor& k, const Tensor& v, bool, int64_t, int64_t, c10::optional<double>,
                        const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&) {
  return plain_softmax(q, k, v);
}

// Whole sequences from empty memory; the final state is not used.
std::tuple<Tensor, Tensor, Tensor> rfa_gate_of_torch(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& gate_logits,
                                                     std::string, const OptionalTensor& draws, const OptionalTensor& sigma,
                                                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                                     c10::optional<double>, const OptionalTensor&) {
  return {plain_gated(q, k, v, gate_logits, *draws, *sigma), at::empty({0}), at::zeros({2}, at::kLong)};
}

// While this object exists, models compute attention in plain torch and are otherwise unchanged: these kernels take precedence
// over those of the ops.
class AttentionOfTorch {
 public:
  AttentionOfTorch() : library_(torch::Library::IMPL, "raffia", c10::DispatchKey::AutogradCPU, __FILE__, __LINE__) {
    library_.impl("softmax", &softmax_of_torch);
    library_.impl("rfa_gate", &rfa_gate_of_torch);
  }

 private:
  torch::Library library_;
};

}  // namespace

class Models {
 public:
  Models(const BenchShape& shape, const ModelShape& model) : shape_(shape), model_(model) {}

  const BenchShape& shape() const { return shape_; }
  const ModelShape& model() const { return model_; }

  nn::LanguageModelImpl& of(const TrainOp& op) {
    auto& made = made_[op.form.name];
    if (!made) {
      torch::manual_seed(shape_.seed);
      made = std::make_shared<nn::LanguageModelImpl>(config_of(shape_, model_, op));
      made->train();
    }
    return *made;
  }

 private:
  BenchShape shape_;
  ModelShape model_;
  std::map<std::string, std::shared_ptr<nn::LanguageModelImpl>> made_;
};

std::shared_ptr<Models> make_models(const BenchShape& shape, const ModelShape& model) {
  return std::make_shared<Models>(shape, model);
}

// Every matrix entry is used once per token: 2 FLOP forward, 4 backward. A layer has 4 E^2 + 2 E ffn = 12 E^2 of them.
double model_flops(const BenchShape& shape, const ModelShape& model, const TrainOp& op, int64_t length) {
  const auto width = static_cast<double>(shape.heads * shape.head_dim), layers = static_cast<double>(model.layers);
  const double entries = 12 * width * width * layers + width * static_cast<double>(model.vocabulary);
  return 6 * entries * static_cast<double>(shape.batch * length) + layers * layer_flops(shape, op, length);
}

std::function<void()> prepare_model(const TrainOp& op, const std::shared_ptr<Models>& models, int64_t length, int threads) {
  return [op, models, length, threads] {
    use_threads(threads);
    nn::LanguageModelImpl& model = models->of(op);
    std::optional<AttentionOfTorch> swapped;
    if (op.is_plain) swapped.emplace();
    torch::manual_seed(models->shape().seed);
    const Tensor ids = torch::randint(models->model().vocabulary, {models->shape().batch, length + 1}, at::kLong);
    model.loss(model.hidden(ids.slice(1, 0, length)), ids.slice(1, 1)).sum.backward();
    for (Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
  };
}

}  // namespace raffia::internal::bench
