#include "runtime/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <string>

#include "io/formats/weight_file.h"
#include "model/plan.h"
#include "raffia/random.h"

namespace raffia::internal::runtime {
namespace {

constexpr size_t kPeriod = 65521;  // prime: the rows of a matrix differ

// `count` bytes: `period`, over and over.
std::vector<std::byte> repeated(std::span<const std::byte> period, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; i += period.size()) {
    std::memcpy(bytes.data() + i, period.data(), std::min(count - i, period.size()));
  }
  return bytes;
}

// Numbers uniform in [-scale, scale).
std::vector<float> noise(size_t count, uint64_t seed, float scale) {
  std::vector<float> drawn(count);
  RandomStream random({.seed = seed});
  for (float& value : drawn) value = scale * static_cast<float>(2 * random.next_uniform() - 1);
  return drawn;
}

std::vector<std::byte> floats_of(size_t count, uint64_t seed) {
  const std::vector<float> drawn = noise(std::min(count, kPeriod), seed, 1);
  return repeated(std::as_bytes(std::span(drawn)), count * sizeof(float));
}

// The stored elements and scales of any matrix of a type, up to some size.
struct StoredNoise {
  std::vector<std::byte> elements, scales;

  StoredNoise(const WeightFormat& format, size_t element_bytes, size_t scale_bytes, uint64_t seed, float scale) {
    // A whole number of groups.
    const auto group = static_cast<size_t>(format.group), columns = kPeriod / group * group;
    const std::vector<float> drawn = noise(columns, seed, scale);
    const StoredWeights stored =
        store_weights("random_weights", View2(drawn.data(), {1, static_cast<int64_t>(columns)}), format.type);
    elements = repeated(stored.elements, element_bytes);
    if (scale_bytes > 0) scales = repeated(stored.scales, scale_bytes);
  }
};

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
  const auto format_in = [type](const TensorPlan& tensor) -> const WeightFormat& {
    return format_of(type_in_model(type, tensor.is_vocabulary()));
  };
  const auto rows_of = [](const TensorPlan& tensor) { return static_cast<size_t>(tensor.shape[0]); };
  struct Bytes {
    size_t elements = 0, scales = 0;
  };
  std::map<WeightType, Bytes> largest;  // matrix of each type
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.is_matrix()) continue;
    const WeightFormat& format = format_in(tensor);
    Bytes& bytes = largest[format.type];
    bytes.elements = std::max(bytes.elements, rows_of(tensor) * format.row_bytes(tensor.shape[1]));
    bytes.scales = std::max(bytes.scales, rows_of(tensor) * format.row_scale_bytes(tensor.shape[1]));
  }
  // Half the width of the uniform distribution that keeps the variance.
  const auto scale = static_cast<float>(std::sqrt(3.0 / static_cast<double>(config.width)));
  std::map<WeightType, StoredNoise> noises;
  for (const auto& [one, bytes] : largest) noises.try_emplace(one, format_of(one), bytes.elements, bytes.scales, seed, scale);

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
      const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
      const WeightFormat& format = format_in(tensor);
      const StoredNoise& matrix = noises.at(format.type);
      written.push_back({tensor.name, format.element, stored_shape(format, rows, columns),
                         std::span(matrix.elements).first(rows_of(tensor) * format.row_bytes(columns))});
      if (format.scales == WeightFormat::Scales::none) continue;
      written.push_back({scale_name(tensor.name), format.scale, scale_shape(format, rows, columns),
                         std::span(matrix.scales).first(rows_of(tensor) * format.row_scale_bytes(columns))});
    } else if (is_drawn(tensor.role)) {
      written.push_back({tensor.name, "F32", tensor.shape, vectors.emplace_back(floats_of(count, seed))});
    } else {
      add_constant(tensor.name, tensor.shape, count, start_value(tensor.role));
    }
  }
  return safetensors_image(written);
}

}  // namespace raffia::internal::runtime
