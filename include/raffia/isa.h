// Which vector instructions the kernels use. Each call of an op takes the best that the CPU supports, limited by the environment
// variable RAFFIA_MAX_ISA (scalar, sse4, avx2, avx512, neon) or by set_max_isa. Kernels that a wider one makes slower use a
// narrower one: `raffia info` lists them.
#ifndef RAFFIA_ISA_H_
#define RAFFIA_ISA_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

enum class Isa : uint8_t { scalar, neon, sse4, avx2, avx512 };

RAFFIA_API std::string_view name_of(Isa isa);
RAFFIA_API Isa parse_isa(std::string_view name);  // throws InvalidArgument and lists the names

RAFFIA_API std::vector<Isa> available_isas();  // compiled in and supported by this CPU, slowest first
RAFFIA_API Isa active_isa();                   // what the next op will use
RAFFIA_API void set_max_isa(Isa isa);          // for tests and benchmarks; must not be called while an op runs

}  // namespace raffia

#endif  // RAFFIA_ISA_H_
