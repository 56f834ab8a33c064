// An untrusted checkpoint of llama2.c: a FormatError, or every weight is within the file and can be read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "io/formats/byte_source.h"
#include "io/imports/llama2c.h"
#include "raffia/error.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

void read_everything(std::span<const std::byte> bytes) {
  const MemorySource source("fuzz.bin", bytes);
  const ImportedModel model = llama2c_model(source);
  for (const WeightSource& weight : model.weights) {
    std::vector<float> values(static_cast<size_t>(element_count(weight.shape).value()));
    weight.read(0, values);
  }
}

// The length of the file is set to match its sizes, which the fuzzer would rarely find by chance.
std::vector<std::byte> of_sound_size(std::span<const std::byte> bytes) {
  constexpr size_t kWords = 7;
  int32_t sizes[kWords];
  std::memcpy(sizes, bytes.data(), sizeof(sizes));
  constexpr int32_t kMax[kWords] = {32, 32, 3, 8, 8, 64, 32};
  for (size_t i = 0; i < kWords; ++i) sizes[i] %= kMax[i] + 1;
  const int64_t dim = sizes[0], hidden = sizes[1], layers = sizes[2], heads = std::max(1, sizes[3]), keys = sizes[4];
  const int64_t vocabulary = sizes[5] < 0 ? -sizes[5] : sizes[5], head = dim / heads;
  const int64_t floats = vocabulary * dim * (sizes[5] < 0 ? 2 : 1) + dim + sizes[6] * head +
                         layers * (2 * dim + 2 * dim * dim + 2 * keys * head * dim + 3 * hidden * dim);
  std::vector<std::byte> sound(bytes.begin(), bytes.end());
  sound.resize(sizeof(sizes) + 4 * static_cast<size_t>(std::clamp<int64_t>(floats, 0, 1 << 20)));
  std::memcpy(sound.data(), sizes, sizeof(sizes));
  return sound;
}

void expect_refusal_or_weights(std::span<const std::byte> bytes) {
  try {
    read_everything(bytes);
  } catch (const FormatError&) {
    return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  expect_refusal_or_weights(bytes);
  if (size >= 28) expect_refusal_or_weights(of_sound_size(bytes));
  return 0;
}
