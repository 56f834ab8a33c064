// Session::from_bytes over tiny models, in both format versions: a FormatError, or a session that can continue and is saved
// unchanged.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "io/formats/image.h"
#include "io/formats/session_file.h"
#include "raffia/error.h"
#include "raffia/session.h"
#include "runtime/random_weights.h"
#include "tiny_models.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

using Bytes = std::span<std::byte>;

const SessionOptions kOptions{.run = {.threads = 1}};

std::shared_ptr<const Model> tiny_model(const ModelConfig& config) {
  return Model::over(config, runtime::random_weights(config, WeightType::f32, 1), nullptr, "fuzz");
}

int64_t number_at(Bytes bytes, size_t at) {  // native byte order: it does not matter for a fuzzer
  int64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// Corrects magic, version, sizes and checksum, also of the memories inside: a checksum is never found by chance. Windows and keys
// have the position of the session.
void mend_frame(const ImageFormat& format, Bytes image) {
  std::vector<int64_t> fields(format.fields);
  std::memcpy(fields.data(), image.data() + ImageFormat::kFieldsAt, 8 * format.fields);
  put_header(format, fields, image);
}

void mend_memory(const ImageFormat& format, Bytes image, int64_t position) {
  if (image.size() < format.header_size() + sizeof(position)) return;
  // The payload of these two begins with the number of tokens.
  if (format.magic != kStateImage.magic) std::memcpy(image.data() + format.header_size(), &position, sizeof(position));
  mend_frame(format, image);
}

void mend_memories_of_version_2(Bytes image, int64_t position) {
  try {
    for (const SessionBlock& block : session_blocks(image, "fuzz")) {
      const Bytes bytes = image.subspan(static_cast<size_t>(block.bytes.data() - image.data()), block.bytes.size());
      for (const ImageFormat& format : {kStateImage, kWindowStateImage, kKeyCacheImage}) {
        const auto magic = std::as_bytes(std::span(format.magic));
        if (std::ranges::equal(bytes.first(std::min(bytes.size(), magic.size())), magic)) mend_memory(format, bytes, position);
      }
    }
  } catch (const FormatError&) {
  }
}

void mend_memories_of_version_1(Bytes image, int64_t position) {
  size_t at = kSessionImage.header_size() + 8 * 8;  // draws and sampling
  const auto number = [&] {
    at += 8;
    return at <= image.size() ? static_cast<uint64_t>(number_at(image, at - 8)) : 0;
  };
  const auto list = [&](size_t element) {
    const uint64_t size = number();
    const size_t left = image.size() - std::min(at, image.size());
    const size_t bytes = std::min<uint64_t>(size, left / element) * element;
    at += bytes;
    return at <= image.size() ? image.subspan(at - bytes, bytes) : Bytes();
  };
  list(sizeof(int32_t));  // recent tokens
  list(sizeof(float));    // logits
  while (at < image.size()) {
    const uint64_t kind = number();
    if (kind == 2) {
      at += 3 * 8;          // sizes of keys
      list(sizeof(float));  // keys
      list(sizeof(float));  // values
    } else {
      mend_memory(kind == 1 ? kWindowStateImage : kStateImage, list(1), position);
    }
    list(sizeof(float));  // tail
  }
}

void mend(Bytes image, const Model& model) {
  const uint64_t fingerprint = model.fingerprint();
  std::memcpy(image.data() + ImageFormat::kFieldsAt, &fingerprint, sizeof(fingerprint));
  const int64_t position = number_at(image, ImageFormat::kFieldsAt + 8);
  ImageFormat format = kSessionImage;
  if (image[ImageFormat::kVersionAt] == std::byte{1}) {
    format.version = 1;
    mend_memories_of_version_1(image, position);
  } else {
    mend_memories_of_version_2(image, position);
  }
  mend_frame(format, image);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<const Model> models[] = {tiny_model(tiny_folding_config()), tiny_model(tiny_keeping_config())};
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  for (const std::shared_ptr<const Model>& model : models) {
    std::vector<std::byte> image(bytes.begin(), bytes.end());
    image.resize(std::max(image.size(), kSessionImage.header_size()));
    mend(image, *model);
    try {
      Session session = Session::from_bytes(model, image, kOptions, "fuzz");
      const std::vector<std::byte> saved = session.to_bytes();
      if (Session::from_bytes(model, saved, kOptions, "fuzz").to_bytes() != saved) std::abort();
      if (can_choose(session)) session.sample();
      session.step(1);
      session.prefill(std::array<int32_t, 5>{0, 1, 2, 3, 4});
    } catch (const FormatError&) {
    }
  }
  return 0;
}
