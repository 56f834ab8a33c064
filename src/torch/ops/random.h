// Seeds and kinds of draws as arguments of ops.
#ifndef RAFFIA_TORCH_OPS_RANDOM_H_
#define RAFFIA_TORCH_OPS_RANDOM_H_

#include <string>

#include "core/check.h"
#include "raffia/random.h"

namespace raffia::internal::ops {

// Seeds have 64 bits: a negative integer is taken as its two's complement bits.
inline uint64_t seed_of(int64_t seed) { return static_cast<uint64_t>(seed); }
inline int64_t seed_argument(uint64_t seed) { return static_cast<int64_t>(seed); }

inline uint32_t number_of(const char* op, const char* argument, int64_t number) {
  require(number >= 0 && number <= int64_t{UINT32_MAX}, "{}: {} is {}, expected 0 to 2^32 - 1", op, argument, number);
  return static_cast<uint32_t>(number);
}

inline std::string name_of(Draws draws) { return draws == Draws::iid ? "iid" : "orthogonal"; }

inline Draws draws_of(const char* op, const std::string& name) {
  require(name == "iid" || name == "orthogonal", "{}: draws is \"{}\", expected iid or orthogonal", op, name);
  return name == "iid" ? Draws::iid : Draws::orthogonal;
}

}  // namespace raffia::internal::ops

#endif  // RAFFIA_TORCH_OPS_RANDOM_H_
