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

namespace {

raffia::ModelConfig image_config() {
  raffia::ModelConfig config = raffia::tiny_config({"softmax"});
  config.task = raffia::Task::image;
  config.vocabulary = 0;
  config.classes = 2;
  config.image_size = 2;
  config.channels = 1;
  config.patch = 1;
  return config;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const raffia::ModelConfig kConfigs[] = {raffia::tiny_folding_config(), raffia::tiny_keeping_config(), image_config()};
  if (size == 0) return 0;
  const raffia::ModelConfig& config = kConfigs[data[0] % std::size(kConfigs)];
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size)).subspan(1);
  try {
    const auto model = raffia::Model::over(config, {bytes.begin(), bytes.end()}, nullptr, "fuzz");
    if (config.task == raffia::Task::image) {
      raffia::classify_image(*model, std::array<float, 4>{0, 0.5, 1, 0}, {.threads = 1});
    } else {
      raffia::Session session(model, {.run = {.threads = 1}});
      session.prefill(std::array<int32_t, 3>{1, 2, 3});
      session.step(raffia::can_choose(session) ? session.sample() : 1);
    }
  } catch (const raffia::FormatError&) {
  } catch (const raffia::Error& error) {
    if (std::string_view(error.what()).find("expected a finite number") == std::string_view::npos) throw;
  }
  return 0;
}
