#include "runtime/memory.h"

namespace raffia::internal::runtime {

size_t size_bytes(const Memories& memory) {
  size_t total = 0;
  for (const AttentionMemory& one : memory) total += one.size_bytes();
  return total;
}

}  // namespace raffia::internal::runtime
