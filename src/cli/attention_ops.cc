#include "cli/attention_ops.h"

#include <vector>

#include "raffia/attention.h"

namespace raffia::cli {
namespace {

enum Stream : uint32_t { kQuery, kKey, kValue, kGate, kOutGradient };

constexpr float kUnitVariance = 1.7320508F;  // uniform in (-sqrt 3, sqrt 3)

const Array4& made(std::optional<Array4>& array, const std::function<Array4()>& make) {
  if (!array) array.emplace(make());
  return *array;
}

// What one linear case owns. The state carries over from run to run: its growth costs no time.
struct LinearRun {
  AttentionCase bench;
  std::shared_ptr<AttentionInputs> inputs;
  FeatureMap map;
  State state;
  AttentionOptions options;
  View4 q, k, v, dout;
  View3 gate_logits;
  std::optional<Array4> own_out, dq, dk, dv, dgate;
  std::vector<float> record, dsigma, dweight, dbias;
  MutView4 out;
  AttentionGradients gradients;

  LinearRun(const AttentionCase& which, const std::shared_ptr<AttentionInputs>& shared, Executor& executor)
      : bench(which),
        inputs(shared),
        map(make_map(shared->shape(), which.input)),
        state(map, {.batch = shared->shape().batch, .value_dim = shared->shape().value_dim}),
        options{.segment = which.segment, .threads = which.threads, .executor = &executor},
        q(shared->q(which.input).view()),
        k(shared->k(which.input).view()),
        v(shared->v().view()) {
    if (bench.op == Op::rfa_gate) gate_logits = inputs->gate_logits().without_dim();
    if (bench.pass == Pass::forward) {
      out = inputs->unread_out().view();
    } else {
      prepare_backward();
    }
  }

  void prepare_backward() {
    const BenchShape& shape = inputs->shape();
    dout = inputs->dout().view();
    out = own_out.emplace(inputs->make(shape.heads, shape.value_dim)).view();
    gradients.q = dq.emplace(inputs->make(shape.heads, q.extent(3))).view();
    gradients.k = dk.emplace(inputs->make(shape.kv_heads, k.extent(3))).view();
    gradients.v = dv.emplace(inputs->make(shape.kv_heads, shape.value_dim)).view();
    if (bench.op == Op::rfa_gate) gradients.gate_logits = dgate.emplace(inputs->make(shape.kv_heads, 1)).without_dim();
    const auto heads = static_cast<size_t>(map.heads());
    if (map.is_random()) {
      dsigma.resize(heads * static_cast<size_t>(map.dim()));
      gradients.map.sigma = {dsigma.data(), {map.heads(), map.dim()}};
    }
    if (map.kind() == MapKind::relu) {
      dweight.resize(heads * static_cast<size_t>(map.features() * map.dim()));
      dbias.resize(heads * static_cast<size_t>(map.features()));
      gradients.map.weight = {dweight.data(), {map.heads(), map.features(), map.dim()}};
      gradients.map.bias = {dbias.data(), {map.heads(), map.features()}};
    }
    record.resize(static_cast<size_t>(record_size(q, k, v, map, options)));
    options.record = record;
    forward();
  }

  void forward() {
    if (bench.op == Op::rfa_gate) {
      gated_attention(q, k, v, gate_logits, map, state, out, options);
    } else if (bench.causal) {
      causal_attention(q, k, v, map, state, out, options);
    } else {
      rfa_attention(q, k, v, map, out, options);
    }
  }

  void backward() {
    if (bench.op == Op::rfa_gate) {
      gated_attention_backward(q, k, v, gate_logits, map, out, record, dout, gradients, options);
    } else if (bench.causal) {
      causal_attention_backward(q, k, v, map, out, record, dout, gradients, options);
    } else {
      rfa_attention_backward(q, k, v, map, out, record, dout, gradients, options);
    }
  }

  void run() {
    if (bench.pass != Pass::backward) forward();
    if (bench.pass != Pass::forward) backward();
  }
};

struct SoftmaxRun {
  AttentionCase bench;
  std::shared_ptr<AttentionInputs> inputs;
  SoftmaxOptions options;
  View4 q, k, v, dout;
  std::optional<Array4> own_out, dq, dk, dv;
  std::vector<float> logsumexp;
  MutView4 out;
  SoftmaxGradients gradients;

  SoftmaxRun(const AttentionCase& which, const std::shared_ptr<AttentionInputs>& shared, Executor& executor)
      : bench(which),
        inputs(shared),
        options{.causal = which.causal, .threads = which.threads, .executor = &executor},
        q(shared->q(Input::qk).view()),
        k(shared->k(Input::qk).view()),
        v(shared->v().view()) {
    if (bench.pass == Pass::forward) {
      out = inputs->unread_out().view();
    } else {
      prepare_backward();
    }
  }

  void prepare_backward() {
    const BenchShape& shape = inputs->shape();
    dout = inputs->dout().view();
    out = own_out.emplace(inputs->make(shape.heads, shape.value_dim)).view();
    gradients.q = dq.emplace(inputs->make(shape.heads, shape.head_dim)).view();
    gradients.k = dk.emplace(inputs->make(shape.kv_heads, shape.head_dim)).view();
    gradients.v = dv.emplace(inputs->make(shape.kv_heads, shape.value_dim)).view();
    logsumexp.resize(static_cast<size_t>(shape.batch * inputs->length() * shape.heads));
    options.logsumexp = {logsumexp.data(), {shape.batch, inputs->length(), shape.heads}};
    forward();
  }

  void forward() { softmax_attention(q, k, v, out, options); }

  void backward() { softmax_attention_backward(q, k, v, out, options.logsumexp, dout, gradients, options); }

  void run() {
    if (bench.pass != Pass::backward) forward();
    if (bench.pass != Pass::forward) backward();
  }
};

}  // namespace

Array4 AttentionInputs::make(int64_t heads, int64_t dim) const {
  return {{shape_.batch, length_, heads, dim}, shape_.dtype, shape_.layout};
}

Array4 AttentionInputs::random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const {
  Array4 array = make(heads, dim);
  array.fill({.seed = shape_.seed, .layer = stream}, low, high);
  return array;
}

Array4 AttentionInputs::features(int64_t heads, uint32_t stream) const {
  const FeatureMap map = make_map(shape_, Input::qk);
  const Array4 x = random(heads, shape_.head_dim, stream, -kUnitVariance, kUnitVariance);
  Array4 phi = make(heads, map.features());
  const std::unique_ptr<Executor> one_thread = make_thread_pool(1);
  apply_features(x.view(), map, phi.view(), {.executor = one_thread.get()});
  return phi;
}

const Array4& AttentionInputs::q(Input input) {
  if (input == Input::features) return made(phi_q_, [this] { return features(shape_.heads, kQuery); });
  return made(q_, [this] { return random(shape_.heads, shape_.head_dim, kQuery, -kUnitVariance, kUnitVariance); });
}

const Array4& AttentionInputs::k(Input input) {
  if (input == Input::features) return made(phi_k_, [this] { return features(shape_.kv_heads, kKey); });
  return made(k_, [this] { return random(shape_.kv_heads, shape_.head_dim, kKey, -kUnitVariance, kUnitVariance); });
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

std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor) {
  if (bench.op == Op::softmax) {
    return [run = std::make_shared<SoftmaxRun>(bench, inputs, executor)] { run->run(); };
  }
  return [run = std::make_shared<LinearRun>(bench, inputs, executor)] { run->run(); };
}

}  // namespace raffia::cli
