// What `raffia bench train` measures: forward and backward passes through autograd, of one attention op or of a whole language
// model, with Raffia's ops and in plain torch.
#ifndef RAFFIA_BENCH_TORCH_TRAIN_OPS_H_
#define RAFFIA_BENCH_TORCH_TRAIN_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/op_form.h"
#include "bench/records.h"
#include "raffia/estimator.h"

namespace raffia::internal::bench {

// A contender, always causal: an estimator, or attention in plain torch.
struct TrainOp {
  OpForm form;
  bool is_plain = false;  // in plain torch
};

// Contenders in plain torch, by name: torch_softmax (matrix product, mask, softmax, matrix product) and torch_chunked (RFA-Gate).
std::vector<std::string> plain_torch_names();
TrainOp train_op_of(const BenchShape& shape, const std::string& spec);  // one of these, or an estimator

// The fields of a record that follow from the flags, and the FLOP of a forward and backward pass of one layer.
Record describe(const BenchShape& shape, const TrainOp& op, int64_t length, int64_t threads);
double layer_flops(const BenchShape& shape, const TrainOp& op, int64_t length);

// at::set_num_threads, if that is another number: each call also starts torch's second thread pool anew, whose threads spin for a
// while and delay the pass that is measured.
void use_threads(int threads);

// The inputs of all layers of one length, made at first use and shared.
class LayerInputs;
std::shared_ptr<LayerInputs> make_layer_inputs(const BenchShape& shape, int64_t length);

// One forward and backward pass: gradients of q, k, v, and of gates, sigma and log-scale where the op has them.
std::function<void()> prepare_layer(const TrainOp& op, const std::shared_ptr<LayerInputs>& inputs, int threads);

struct ModelShape {
  int64_t layers = 6;
  int64_t vocabulary = 8192;
};

// One step of training without the optimiser: forward, cross entropy, backward. Models made by prepare_model() are kept as long
// as `Models` exists, one per op for all lengths.
class Models;
std::shared_ptr<Models> make_models(const BenchShape& shape, const ModelShape& model);
double model_flops(const BenchShape& shape, const ModelShape& model, const TrainOp& op, int64_t length);
std::function<void()> prepare_model(const TrainOp& op, const std::shared_ptr<Models>& models, int64_t length, int threads);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_TORCH_TRAIN_OPS_H_
