// One call of the blocked softmax kernel. Exact softmax attention is one such call; LARA, EVA and hybrid are composed of several.
//
// A softmax over several sets of keys is computed part by part: a part that resumes merges its keys into the output and
// logsumexp of earlier parts. Given those of the whole softmax, the gradients of the parts are independent of each other.
// Nothing is checked here: the ops check their arguments.
#ifndef RAFFIA_ESTIMATORS_SHARED_SOFTMAX_PART_H_
#define RAFFIA_ESTIMATORS_SHARED_SOFTMAX_PART_H_

#include <functional>
#include <span>
#include <vector>

#include "estimators/shared/sequences.h"
#include "kernels/softmax.h"
#include "raffia/attention.h"

namespace raffia::internal {

struct PartSequence {
  int64_t batch;
  int64_t first_query, first_key;
  Visibility visible;  // holds how many queries and keys there are
};

struct SoftmaxPart {
  View4 q, k, v;           // [B, Tq, H, D], [B, Tk, G, D], [B, Tk, G, V]; V may be 0 if only logsumexp is needed
  float scale = 1;         // logits are scale q . k + key_bias + query_bias
  View3 key_bias = {};     // [B, Tk, G]
  View3 query_bias = {};   // [B, Tq, H]
  View2 valid = {};        // [B, Tk] u8
  View2 query_valid = {};  // [B, Tq] u8: queries that have a gradient; the contents of others (even NaN) have no effect
  std::vector<PartSequence> sequences;
  Workers workers;
};

// The mask and bias of keys of head `g`, from token `t` of batch entry `b` on.
KeyMask mask_of(View2 valid, View3 key_bias, int64_t b, int64_t t, int64_t g);

enum class Start : uint8_t {
  anew,    // out and logsumexp are overwritten
  resume,  // they hold a softmax over other keys, which is continued (in fp32, so that nothing is rounded in between)
};

// Rows outside of all sequences are not changed. `logsumexp` may be absent unless resumed.
void forward(const SoftmaxPart& part, MutView4 out, MutView3 logsumexp, Start start = Start::anew);

// Keys drawn from the softmax of every query: uniform(i, h, t) in (0, 1) decides draw t of query i of a sequence.
// `logsumexp` is that of the part; V of the part may be 0. drawn [B, Tq, H, draws]: keys of the sequence, or -1 where there are
// none.
void draw_keys(const SoftmaxPart& part, View3 logsumexp, int64_t draws,
               const std::function<double(int64_t i, int64_t h, int64_t t)>& uniform, std::span<int32_t> drawn);

// Which gradients are added to the contents of the views instead of overwriting them.
struct Additions {
  bool q = false;
  bool k = false;  // and v and key_bias
};

// `out` and `logsumexp` are those of the whole softmax; `dout` is its gradient, `dlogsumexp` (may be absent) that of logsumexp.
// Sequences must not share keys or queries.
void backward(const SoftmaxPart& part, View4 out, View3 logsumexp, View4 dout, View3 dlogsumexp,
              const SoftmaxGradients& gradients, Additions additions = {});

}  // namespace raffia::internal

#endif  // RAFFIA_ESTIMATORS_SHARED_SOFTMAX_PART_H_
