// The attention ops under one roof, ready to be timed.
#ifndef RAFFIA_CLI_ATTENTION_OPS_H_
#define RAFFIA_CLI_ATTENTION_OPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cli/arrays.h"
#include "cli/bench.h"
#include "raffia/threads.h"

namespace raffia::cli {

enum class Pass : uint8_t { forward, backward, forward_backward };

inline constexpr Named<Pass> kPasses[] = {
    {"forward", Pass::forward}, {"backward", Pass::backward}, {"forward+backward", Pass::forward_backward}};

struct AttentionCase {
  Op op = Op::softmax;
  Pass pass = Pass::forward;
  Input input = Input::qk;
  bool causal = false;
  int threads = 1;
  int64_t segment = 0;
};

// What the cases of one length read, made when first asked for and shared by all of them.
class AttentionInputs {
 public:
  AttentionInputs(const BenchShape& shape, int64_t length) : shape_(shape), length_(length) {}

  const BenchShape& shape() const { return shape_; }
  int64_t length() const { return length_; }

  const Array4& q(Input input);
  const Array4& k(Input input);
  const Array4& v();
  const Array4& gate_logits();
  const Array4& dout();
  const Array4& unread_out();  // for cases whose outputs nobody reads

  Array4 make(int64_t heads, int64_t dim) const;

 private:
  Array4 random(int64_t heads, int64_t dim, uint32_t stream, float low, float high) const;
  Array4 features(int64_t heads, uint32_t stream) const;

  BenchShape shape_;
  int64_t length_;
  std::optional<Array4> q_, k_, phi_q_, phi_k_, v_, gate_logits_, dout_, out_;
};

// Allocates what the case writes and returns one run of it.
std::function<void()> prepare_attention(const AttentionCase& bench, const std::shared_ptr<AttentionInputs>& inputs,
                                        Executor& executor);

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_ATTENTION_OPS_H_
