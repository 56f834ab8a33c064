#include "core/weight_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace raffia::internal {

size_t size_of(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return 4;
    case WeightType::bf16:
      return 2;
    case WeightType::int8:
      return 1;
  }
  return 0;
}

const char* name_of(WeightType type) {
  switch (type) {
    case WeightType::f32:
      return "f32";
    case WeightType::bf16:
      return "bf16";
    case WeightType::int8:
      return "int8";
  }
  return "unknown";
}

void copy_row(const WeightMatrix& weights, int64_t row, std::span<float> out) {
  require(row >= 0 && row < weights.rows, "copy_row: row is {}, expected 0 to {}", row, weights.rows - 1);
  require(out.size() == static_cast<size_t>(weights.columns), "copy_row: out has {} elements, expected {} (columns)", out.size(),
          weights.columns);
  if (out.empty()) return;
  const void* from = weights.row(row);
  switch (weights.type) {
    case WeightType::f32:
      std::memcpy(out.data(), from, out.size_bytes());
      break;
    case WeightType::bf16:
      std::transform(static_cast<const BFloat16*>(from), static_cast<const BFloat16*>(from) + out.size(), out.begin(),
                     [](BFloat16 element) { return element.to_float(); });
      break;
    case WeightType::int8:
      std::transform(static_cast<const int8_t*>(from), static_cast<const int8_t*>(from) + out.size(), out.begin(),
                     [scale = weights.scales[row]](int8_t element) { return scale * static_cast<float>(element); });
      break;
  }
}

void quantize_rows(std::string_view name, View2 weights, std::span<int8_t> quantized, std::span<float> scales) {
  const int64_t rows = weights.extent(0), columns = weights.extent(1);
  require_dtype("quantize_rows", name, weights, {DType::f32});
  require_shape("quantize_rows", name, weights, {rows, columns}, "its own");
  require(columns == 0 || weights.stride(1) == 1, "quantize_rows: {} has columns {} elements apart, expected 1", name,
          weights.stride(1));
  require(quantized.size() == static_cast<size_t>(rows * columns), "quantize_rows: quantized has {} elements, expected {} ({})",
          quantized.size(), rows * columns, name);
  require(scales.size() == static_cast<size_t>(rows), "quantize_rows: scales has {} elements, expected {} (rows of {})",
          scales.size(), rows, name);
  constexpr float kGreatest = 127.0f;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = static_cast<const float*>(weights.data()) + r * weights.stride(0);
    float greatest = 0.0f;
    for (int64_t c = 0; c < columns; ++c) {
      require(std::isfinite(row[c]), "quantize_rows: {}[{}, {}] is {}, expected a finite number", name, r, c, row[c]);
      greatest = std::max(greatest, std::abs(row[c]));
    }
    const float scale = greatest / kGreatest;
    scales[static_cast<size_t>(r)] = scale;
    int8_t* out = quantized.data() + r * columns;
    for (int64_t c = 0; c < columns; ++c) {
      // A scale that underflows, or loses bits as a subnormal, would make elements exceed 127.
      const float element = scale == 0.0f ? 0.0f : std::nearbyint(row[c] / scale);
      out[c] = static_cast<int8_t>(std::clamp(element, -kGreatest, kGreatest));
    }
  }
}

void round_weights(std::string_view name, std::span<const float> weights, std::span<BFloat16> rounded) {
  require(rounded.size() == weights.size(), "round_weights: rounded has {} elements, expected {} ({})", rounded.size(),
          weights.size(), name);
  for (size_t i = 0; i < weights.size(); ++i) {
    rounded[i] = BFloat16::from_float(weights[i]);
    require(std::isfinite(rounded[i].to_float()),
            "round_weights: element {} of {} is {}, expected a finite number that fits bf16", i, name, weights[i]);
  }
}

}  // namespace raffia::internal
