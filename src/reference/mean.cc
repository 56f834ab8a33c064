// The mean of the values that a query sees.
#include "raffia/reference.h"
#include "reference/rows.h"

namespace raffia::reference {

using namespace internal;
using namespace internal::twins;

// out_t = sum_j v_j / n over the n keys j of the sequence that take part, of the own head; causal: over those with j <= t.
void mean_attention(View4 q, View4 k, View4 v, MutView4 out, bool causal, const Layout& layout) {
  fill(out, 0);
  const int64_t group = q.extent(2) / k.extent(2);
  for (const Sequence& sequence : sequences_of(layout, q.extent(0), q.extent(1), k.extent(1))) {
    for (int64_t i = 0; i < sequence.queries; ++i) {
      if (causal && !takes_part(layout, sequence.batch, sequence.first_key + i)) continue;
      const int64_t visible = causal ? i + 1 : sequence.keys;
      for (int64_t h = 0; h < q.extent(2); ++h) {
        for (int64_t e = 0; e < v.extent(3); ++e) {
          double sum = 0, count = 0;
          for (int64_t j = sequence.first_key; j < sequence.first_key + visible; ++j) {
            if (!takes_part(layout, sequence.batch, j)) continue;
            sum += v(sequence.batch, j, h / group, e);
            count += 1;
          }
          out.set(count == 0 ? 0 : sum / count, sequence.batch, sequence.first_query + i, h, e);
        }
      }
    }
  }
}

}  // namespace raffia::reference
