#include "bench/attention_ops.h"

#include <utility>
#include <vector>

#include "raffia/attention.h"

namespace raffia::internal::bench {
namespace {

const Array4& made(std::optional<Array4>& array, const std::function<Array4()>& make) {
  if (!array) array.emplace(make());
  return *array;
}

}  // namespace

Array4 AttentionInputs::make(int64_t heads, int64_t dim) const {
  return {{shape_.batch, length_, heads, dim}, shape_.dtype, shape_.layout};
}

Array4 AttentionInputs::random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const {
  Array4 array = make(heads, dim);
  array.fill({.seed = shape_.seed, .layer = stream}, low, high);
  return array;
}

const Array4& AttentionInputs::x(std::optional<Array4>& array, int64_t heads, DrawnInput which) {
  return made(array, [&] { return random(heads, shape_.head_dim, which, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::phi(Features& all, const Estimator& estimator, int64_t heads, DrawnInput which) {
  const std::string name = to_string(estimator);
  if (const auto found = all.find(name); found != all.end()) return found->second;
  const FeatureMap map = make_map(shape_, estimator, OpInput::qk);
  const Array4 plain = random(heads, shape_.head_dim, which, -kUnitVariance, kUnitVariance);
  Array4 features = make(heads, map.features());
  const std::unique_ptr<Executor> one_thread = make_thread_pool(1);
  apply_features(plain.view(), map, features.view(), {.executor = one_thread.get()});
  return all.emplace(name, std::move(features)).first->second;
}

const Array4& AttentionInputs::v() {
  return made(v_, [this] { return random(shape_.kv_heads, shape_.value_dim, kValue, -kUnitVariance, kUnitVariance); });
}

// Gates between 0.88 and 0.998: memories of 8 to 400 tokens.
const Array4& AttentionInputs::gate_logits() {
  return made(gate_logits_, [this] { return random(shape_.kv_heads, 1, kGate, 2.0F, 6.0F); });
}

const Array4& AttentionInputs::dout() {
  return made(dout_, [this] { return random(shape_.heads, shape_.value_dim, kOutGradient, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::unread_out() {
  return made(out_, [this] { return make(shape_.heads, shape_.value_dim); });
}

AttentionRun::AttentionRun(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& arrays, Executor& executor)
    : bench_(bench),
      estimator_(bench.form.estimator),
      traits_(bench.form.traits()),
      arrays_of_length_(arrays),
      options_{.causal = bench.form.causal, .segment = bench.segment, .run = {.threads = bench.threads, .executor = &executor}} {
  prepare_inputs();
  if (goes_backward()) {
    prepare_backward();
    return;
  }
  out_ = arrays->unread_out().view();
  if (!bench.form.causal || !traits_.has_memory) return;
  const MemorySizes sizes = memory_sizes(arrays->shape(), inputs_.map, !inputs_.k_far.absent());
  if (Memory memory = empty_memory(estimator_, sizes); memory.state() != nullptr) memory_ = std::move(memory);
}

void AttentionRun::prepare_inputs() {
  AttentionInputs& arrays = *arrays_of_length_;
  inputs_ = {.q = arrays.q().view(), .k = arrays.k().view(), .v = arrays.v().view()};
  if (traits_.has_map) inputs_.map = &map_.emplace(make_map(arrays.shape(), estimator_, bench_.form.input));
  if (traits_.is_gated) inputs_.gate_logits = arrays.gate_logits().without_dim();
  if (bench_.form.input == OpInput::qk) return;
  // What the map reads is given: all that there is, or the folded part.
  (traits_.blends ? inputs_.q_far : inputs_.q) = arrays.phi_q(estimator_).view();
  (traits_.blends ? inputs_.k_far : inputs_.k) = arrays.phi_k(estimator_).view();
}

void AttentionRun::prepare_backward() {
  const BenchShape& shape = arrays_of_length_->shape();
  out_ = array(shape.heads, shape.value_dim);
  dout_ = arrays_of_length_->dout().view();
  gradients_ = {.q = array(shape.heads, inputs_.q.extent(3)),
                .k = array(shape.kv_heads, inputs_.k.extent(3)),
                .v = array(shape.kv_heads, shape.value_dim)};
  if (traits_.is_gated) {
    const MutView4 gates = array(shape.kv_heads, 1);
    gradients_.gate_logits = {gates.data(),
                              gates.dtype(),
                              {gates.extent(0), gates.extent(1), gates.extent(2)},
                              {gates.stride(0), gates.stride(1), gates.stride(2)}};
  }
  if (traits_.blends) gradients_.log_scale = {floats(shape.heads).data(), {shape.heads}};
  if (!inputs_.q_far.absent()) {
    gradients_.q_far = array(shape.heads, inputs_.q_far.extent(3));
    gradients_.k_far = array(shape.kv_heads, inputs_.k_far.extent(3));
  }
  if (map_) {
    const int64_t heads = map_->heads(), features = map_->features(), dim = map_->dim();
    if (map_->is_random()) gradients_.map.sigma = {floats(heads * dim).data(), {heads, dim}};
    if (map_->kind() == MapKind::relu) {
      gradients_.map.weight = {floats(heads * features * dim).data(), {heads, features, dim}};
      gradients_.map.bias = {floats(heads * features).data(), {heads, features}};
    }
  }
  record_ = floats(attend_record_size(estimator_, inputs_, options_));
  forward();  // leaves what the backward pass reads
}

MutView4 AttentionRun::array(int64_t heads, int64_t dim) {
  return arrays_.emplace_back(arrays_of_length_->make(heads, dim)).view();
}

std::span<float> AttentionRun::floats(int64_t count) { return floats_.emplace_back(static_cast<size_t>(count)); }

void AttentionRun::forward() {
  if (memory_) {
    attend(estimator_, inputs_, *memory_, out_, options_);
  } else {
    attend(estimator_, inputs_, out_, options_, record_);
  }
}

void AttentionRun::backward() { attend_backward(estimator_, inputs_, out_, record_, dout_, gradients_, options_); }

void AttentionRun::run() {
  if (bench_.pass != Pass::backward) forward();
  if (goes_backward()) backward();
}

std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor) {
  return [run = std::make_shared<AttentionRun>(bench, inputs, executor)] { run->run(); };
}

}  // namespace raffia::internal::bench
