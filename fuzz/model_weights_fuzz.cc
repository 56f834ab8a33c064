// Model::over with untrusted bytes as weight file: a FormatError, or a model that runs. Finite weights may still overflow on the
// way to the logits, which is an Error that says so. The first byte selects the configuration.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "raffia/error.h"
#include "raffia/session.h"
#include "tiny_models.h"

using namespace raffia;
using namespace raffia::internal;

namespace {

ModelConfig image_config() {
  ModelConfig config = tiny_config({"softmax"});
  config.task = Task::image;
  config.vocabulary = 0;
  config.classes = 2;
  config.image_size = 2;
  config.channels = 1;
  config.patch = 1;
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ModelConfig configs[] = {tiny_folding_config(), tiny_keeping_config(), image_config()};
  if (size == 0) return 0;
  const ModelConfig& config = configs[data[0] % std::size(configs)];
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(1);
  try {
    const auto model = Model::over(config, {bytes.begin(), bytes.end()}, nullptr, "fuzz");
    if (config.task == Task::image) {
      classify_image(*model, std::array<float, 4>{0, 0.5, 1, 0}, {.threads = 1});
    } else {
      Session session(model, {.run = {.threads = 1}});
      session.prefill(std::array<int32_t, 3>{1, 2, 3});
      session.step(can_choose(session) ? session.sample() : 1);
    }
  } catch (const FormatError&) {
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("expected a finite number") == std::string_view::npos) throw;
  }
  return 0;
}
