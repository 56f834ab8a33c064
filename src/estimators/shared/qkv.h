// Common to ops over q, k, v with one scale of logits: checks of arguments, sizes, and outputs that are summed in several steps.
#ifndef RAFFIA_ESTIMATORS_SHARED_QKV_H_
#define RAFFIA_ESTIMATORS_SHARED_QKV_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/scratch.h"
#include "estimators/shared/sequences.h"
#include "kernels/softmax.h"
#include "raffia/attention.h"
#include "raffia/lara.h"
#include "raffia/views.h"

namespace raffia::internal {

// tau: 1 / sqrt(dim) by default.
float scale_or_default(std::optional<float> given, int64_t dim);

// Checks that shapes match each other and the layout. Throws InvalidArgument, which names `function`.
struct Qkv {
  Qkv(const char* function, View4 q, View4 k, View4 v, const Layout& layout, std::optional<float> scale, const RunOptions& run);

  // `name`: an output, or the gradient of one.
  void check_output(const char* name, View4 out) const;
  void check_gradients(const QkvGradients& gradients) const;
  void check_record(std::span<const float> record, int64_t size) const;

  KeyMask key_mask(const Sequence& s) const;

  const char* function;
  int64_t batch, query_length, heads, dim, key_length, groups, value_dim;
  View2 valid;
  float scale;  // tau: logits are tau q . k
  float root;   // its square root: x' = root x
  bool packed;  // several sequences are packed in one batch entry
  bool self;    // token i has a query and a key, which are masked together
  std::vector<Sequence> sequences;
};

void zero_tokens(MutView4 view, int64_t b, int64_t begin, int64_t end);

// Sets tokens outside of all sequences to zero.
void zero_padding(MutView4 view, const Qkv& problem, int64_t Sequence::*tokens);

// Sets the rows of masked tokens to zero, if each token has a query and a key.
void zero_masked_queries(MutView4 view, const Qkv& problem);

// An output that several steps add to. They add in fp32; if the output is bf16, it is rounded once at the end.
class Float32Output {
 public:
  explicit Float32Output(MutView4 out);

  MutView4 view() const { return view_; }
  void store(const Workers& workers) const;  // into `out`, all of it

 private:
  MutView4 out_, view_;
  Scratch memory_;
};

// Outputs of the forward pass as the backward pass needs them. Those in bf16 are rounded, and dout . out with them, by more than
// all of dq where one key dominates: they are computed again, by forward(out), in fp32.
class ForwardOutputs {
 public:
  template <class Forward>
  ForwardOutputs(View4 out, const Forward& forward)
      : view_(out), memory_(1, out.dtype() == DType::f32 ? 0 : static_cast<size_t>(out.size())) {
    if (out.dtype() == DType::f32) return;
    const MutView4 again(memory_.of(0), out.shape());
    forward(again);
    view_ = again;
  }

  View4 view() const { return view_; }

 private:
  View4 view_;
  Scratch memory_;
};

// A view without columns, for parts of which only logsumexp is needed. Its pointer is not null, so that it is not absent.
template <class AnyView>
AnyView no_values(const AnyView& like) {
  return AnyView(like.data(), like.dtype(), {like.extent(0), like.extent(1), like.extent(2), 0}, like.strides());
}

// Pieces of one block of floats, in the order of the calls.
class Pieces {
 public:
  explicit Pieces(float* memory = nullptr) : memory_(memory) {}  // null: counts only

  float* take(int64_t floats) {
    float* taken = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += floats;
    return taken;
  }
  int64_t taken() const { return taken_; }

 private:
  float* memory_;
  int64_t taken_ = 0;
};

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_QKV_H_
