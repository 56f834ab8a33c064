#include "runtime/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <span>
#include <string>

#include "io/formats/weight_file.h"
#include "model/plan.h"
#include "raffia/random.h"

namespace raffia::internal::runtime {
namespace {

// `count` numbers uniform in [-1, 1), each converted by `convert`.
template <class Element>
std::vector<std::byte> noise(size_t count, uint64_t seed, const auto& convert) {
  constexpr size_t kPeriod = 65521;  // prime: the rows of a matrix differ
  std::vector<float> drawn(std::min(count, kPeriod));
  RandomStream random({.seed = seed});
  for (float& value : drawn) value = static_cast<float>(2 * random.next_uniform() - 1);
  std::vector<Element> elements(drawn.size());
  convert(drawn, elements);
  std::vector<std::byte> bytes(count * sizeof(Element));
  for (size_t i = 0; i < count; i += kPeriod) {
    std::memcpy(bytes.data() + i * sizeof(Element), elements.data(), std::min(count - i, elements.size()) * sizeof(Element));
  }
  return bytes;
}

std::vector<std::byte> floats_of(size_t count, uint64_t seed, float scale) {
  return noise<float>(count, seed, [scale](const std::vector<float>& drawn, std::vector<float>& elements) {
    std::ranges::transform(drawn, elements.begin(), [scale](float x) { return scale * x; });
  });
}

std::vector<std::byte> matrix_of(WeightType type, size_t count, uint64_t seed, float scale) {
  switch (type) {
    case WeightType::bf16:
      return noise<BFloat16>(count, seed, [scale](std::vector<float>& drawn, std::vector<BFloat16>& elements) {
        for (float& x : drawn) x *= scale;
        round_weights("random_weights", drawn, elements);
      });
    case WeightType::int8:
      return noise<int8_t>(count, seed, [](const std::vector<float>& drawn, std::vector<int8_t>& elements) {
        std::ranges::transform(drawn, elements.begin(), [](float x) { return static_cast<int8_t>(std::lround(127 * x)); });
      });
    case WeightType::f32:
      break;
  }
  return floats_of(count, seed, scale);
}

bool is_drawn(TensorRole role) { return role == TensorRole::draws || role == TensorRole::features; }

// Roughly the initial value of other vectors in training.
float start_value(TensorRole role) {
  if (role == TensorRole::factor) return 1;
  return role == TensorRole::sigma ? 0.3F : 0.0F;
}

}  // namespace

std::vector<std::byte> random_weights(const ModelConfig& config, WeightType type, uint64_t seed) {
  config.check("random_weights");
  const ModelPlan plan = plan_of(config);
  int64_t max = 0;  // elements of a matrix
  for (const TensorPlan& tensor : plan.tensors) max = std::max(max, tensor.is_matrix() ? tensor.count() : 0);
  // Half the width of the uniform distribution that keeps the variance.
  const auto scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(config.width)));
  const std::vector<std::byte> matrix = matrix_of(type, static_cast<size_t>(max), seed, scale);

  std::deque<std::vector<std::byte>> vectors;  // spans of written point here
  std::vector<TensorToWrite> written;
  const auto add_constant = [&](const std::string& name, const std::vector<int64_t>& shape, size_t count, float value) {
    const std::vector<float> values(count, value);
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    written.push_back({name, "F32", shape, vectors.emplace_back(bytes.begin(), bytes.end())});
  };
  for (const TensorPlan& tensor : plan.tensors) {
    const auto count = static_cast<size_t>(tensor.count());
    if (tensor.is_matrix()) {
      written.push_back({tensor.name, dtype_of(type), tensor.shape, std::span(matrix).first(count * size_of(type))});
      const int64_t rows = tensor.shape[0];
      if (type == WeightType::int8) add_constant(scale_name(tensor.name), {rows}, static_cast<size_t>(rows), scale / 127);
    } else if (is_drawn(tensor.role)) {
      written.push_back({tensor.name, "F32", tensor.shape, vectors.emplace_back(floats_of(count, seed, 1))});
    } else {
      add_constant(tensor.name, tensor.shape, count, start_value(tensor.role));
    }
  }
  return safetensors_image(written);
}

}  // namespace raffia::internal::runtime
