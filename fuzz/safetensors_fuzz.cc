// Safetensors over untrusted bytes: a FormatError, or every tensor is within the file and can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "io/formats/safetensors.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

void read_everything(const Safetensors& file, size_t size) {
  for (const Safetensors::Tensor& tensor : file.tensors()) {
    if (tensor.begin > tensor.end || tensor.end > size) std::abort();
    if (file.read_bytes(tensor.name).size() != tensor.end - tensor.begin) std::abort();
    try {
      const FloatArray array = file.read(tensor.name);
      const auto count = element_count(array.shape);
      if (array.shape != tensor.shape || !count || static_cast<size_t>(*count) != array.values.size()) std::abort();
    } catch (const FormatError&) {  // not of a float type
      continue;
    }
  }
}

void expect_refusal_or_tensors(std::span<const std::byte> bytes) {
  try {
    read_everything(Safetensors::over(bytes, "fuzz.safetensors"), bytes.size());
  } catch (const FormatError&) {
    return;
  }
}

// The header size is set to match its JSON, which the fuzzer would rarely find by chance after a change of the text.
std::vector<std::byte> with_sound_size(std::span<const std::byte> bytes) {
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  const std::string_view text(reinterpret_cast<const char*>(sound.data()) + 8, sound.size() - 8);
  const size_t end = text.rfind('}');
  const uint64_t header_size = end == std::string_view::npos ? text.size() : end + 1;
  for (size_t i = 0; i < 8; ++i) sound[i] = static_cast<std::byte>(header_size >> (8 * i));
  return sound;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_tensors(bytes);
  if (size >= 8) expect_refusal_or_tensors(with_sound_size(bytes));
  return 0;
}
