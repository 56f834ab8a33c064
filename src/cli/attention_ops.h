// All attention ops behind one interface, for timing.
#ifndef RAFFIA_CLI_ATTENTION_OPS_H_
#define RAFFIA_CLI_ATTENTION_OPS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cli/arrays.h"
#include "cli/bench.h"
#include "cli/op_options.h"
#include "raffia/lara.h"
#include "raffia/threads.h"

namespace raffia::cli {

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

  const Array4& q(OpInput input);
  const Array4& k(OpInput input);
  const Array4& v();
  const Array4& gate_logits();
  const Array4& dout();
  const Array4& unread_out();  // for cases whose outputs are not read

  Array4 make(int64_t heads, int64_t dim) const;

 private:
  Array4 random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const;
  Array4 features(int64_t heads, uint32_t stream) const;

  BenchShape shape_;
  int64_t length_;
  std::optional<Array4> q_, k_, phi_q_, phi_k_, v_, gate_logits_, dout_, out_;
};

// Inputs and outputs of one case. Gradients, `dout` and extra memory exist only if it has a backward pass.
class AttentionRun {
 public:
  AttentionRun(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs, Executor& executor);

  const AttentionCase bench;
  const std::shared_ptr<AttentionInputs> inputs;
  View4 q, k, v, dout;  // q and k are features if the op reads only these
  MutView4 out;
  QkvGradients gradients;

  const BenchShape& shape() const { return inputs->shape(); }
  bool goes_backward() const { return bench.pass != Pass::forward; }

  template <typename Options>
  Options place(const Options& options) const {
    return placed(options, bench.threads, executor_);
  }

  // Memory that lives as long as the run: gradients, records, gradients of parameters. Absent without a backward pass.
  MutView4 array(int64_t heads, int64_t dim);
  std::span<float> floats(int64_t count);

 private:
  Executor& executor_;
  std::deque<Array4> arrays_;
  std::deque<std::vector<float>> floats_;
};

// The two passes of a run; the run must outlive them.
struct Passes {
  std::function<void()> forward, backward;
};

Passes softmax_passes(AttentionRun& run);
Passes linear_passes(AttentionRun& run);  // rfa, rfa_gate
Passes hybrid_passes(AttentionRun& run);
Passes sampled_passes(AttentionRun& run);  // lara, ra, eva

// Allocates the outputs of the case and returns one run of it.
std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_ATTENTION_OPS_H_
