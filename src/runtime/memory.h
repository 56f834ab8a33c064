// The memory of a session, one part per attention.
#ifndef RAFFIA_RUNTIME_MEMORY_H_
#define RAFFIA_RUNTIME_MEMORY_H_

#include <cstddef>
#include <vector>

#include "raffia/memory.h"

namespace raffia::internal::runtime {

// The memory of one causal attention.
struct AttentionMemory {
  Memory past;                   // of its estimator
  std::vector<float> tail = {};  // [conv - 1, (H + 2 G) d]: rows of q, k, v that the short convolution still needs

  size_t size_bytes() const { return past.size_bytes() + tail.size() * sizeof(float); }
};

using Memories = std::vector<AttentionMemory>;  // of a session: one per causal attention, in order

size_t size_bytes(const Memories& memory);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_MEMORY_H_
