// parse_npy on untrusted bytes: a FormatError, or as many values as the shape has.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "io/formats/npy.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const FloatArray array = parse_npy(std::as_bytes(std::span(data, size)), "fuzz.npy");
    const auto count = element_count(array.shape);
    if (!count || static_cast<size_t>(*count) != array.values.size()) std::abort();
  } catch (const FormatError&) {
    return 0;
  }
  return 0;
}
