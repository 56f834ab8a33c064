// Attention over whole sequences with any estimator, for timing.
#ifndef RAFFIA_BENCH_ATTENTION_OPS_H_
#define RAFFIA_BENCH_ATTENTION_OPS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/arrays.h"
#include "bench/op_form.h"
#include "raffia/estimator.h"
#include "raffia/threads.h"

namespace raffia::internal::bench {

struct AttentionCase {
  OpForm form;
  Pass pass = Pass::forward;
  int threads = 1;
  int64_t segment = 0;
};

// The inputs of all cases of one length, made at first use and shared.
class AttentionInputs {
 public:
  AttentionInputs(const BenchShape& shape, int64_t length) : shape_(shape), length_(length) {}

  const BenchShape& shape() const { return shape_; }
  int64_t length() const { return length_; }

  const Array4& q() { return x(q_, shape_.heads, kQuery); }
  const Array4& k() { return x(k_, shape_.kv_heads, kKey); }
  // phi(q) and phi(k) of the map of an estimator.
  const Array4& phi_q(const Estimator& estimator) { return phi(phi_q_, estimator, shape_.heads, kQuery); }
  const Array4& phi_k(const Estimator& estimator) { return phi(phi_k_, estimator, shape_.kv_heads, kKey); }
  const Array4& v();
  const Array4& gate_logits();
  const Array4& dout();
  const Array4& unread_out();  // for cases whose outputs are not read

  Array4 make(int64_t heads, int64_t dim) const;

 private:
  using DrawnInput = uint32_t;  // stream of random numbers
  static constexpr DrawnInput kQuery = 0, kKey = 1, kValue = 2, kGate = 3, kOutGradient = 4;
  using Features = std::map<std::string, Array4>;  // by estimator

  Array4 random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const;
  const Array4& x(std::optional<Array4>& made, int64_t heads, DrawnInput which);
  const Array4& phi(Features& made, const Estimator& estimator, int64_t heads, DrawnInput which);

  BenchShape shape_;
  int64_t length_;
  std::optional<Array4> q_, k_, v_, gate_logits_, dout_, out_;
  Features phi_q_, phi_k_;
};

// Inputs and outputs of one case. Gradients, `dout` and a record exist only if it has a backward pass.
class AttentionRun {
 public:
  AttentionRun(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs, Executor& executor);

  void run();

 private:
  bool goes_backward() const { return bench_.pass != Pass::forward; }
  void prepare_inputs();
  void prepare_backward();
  void forward();
  void backward();
  MutView4 array(int64_t heads, int64_t dim);  // memory that lives as long as the run
  std::span<float> floats(int64_t count);      // the same

  const AttentionCase bench_;
  const Estimator estimator_;
  const EstimatorTraits traits_;
  const std::shared_ptr<AttentionInputs> arrays_of_length_;
  std::optional<FeatureMap> map_;
  std::optional<Memory> memory_;  // a State is carried from run to run: larger values in it cost no time
  AttendInputs inputs_;
  AttendOptions options_;
  MutView4 out_;
  View4 dout_;
  AttendGradients gradients_;
  std::span<float> record_;
  std::deque<Array4> arrays_;
  std::deque<std::vector<float>> floats_;
};

// Allocates the outputs of the case and returns one run of it.
std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_ATTENTION_OPS_H_
