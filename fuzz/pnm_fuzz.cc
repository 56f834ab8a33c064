// parse_pnm on untrusted bytes: a FormatError, or as many values from 0 to 1 as the shape has.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/formats/pnm.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const FloatArray image = parse_pnm({reinterpret_cast<const char*>(data), size}, "fuzz.ppm");
    const auto count = element_count(image.shape);
    if (!count || static_cast<size_t>(*count) != image.values.size()) std::abort();
    if (!std::ranges::all_of(image.values, [](float value) { return value >= 0 && value <= 1; })) std::abort();
  } catch (const FormatError&) {
    return 0;
  }
  return 0;
}
