#include "core/weight_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace raffia::internal {
namespace {

constexpr auto kGroup = static_cast<size_t>(kWeightGroup);

std::span<const float> row_of(View2 weights, int64_t row) {
  return {static_cast<const float*>(weights.data()) + row * weights.stride(0), static_cast<size_t>(weights.extent(1))};
}

void require_finite_row(std::string_view name, std::span<const float> weights, int64_t row) {
  for (size_t c = 0; c < weights.size(); ++c) {
    require(std::isfinite(weights[c]), "store_weights: {}[{}, {}] is {}, expected a finite number", name, row, c, weights[c]);
  }
}

// --- f32 ---

void store_f32(std::string_view name, View2 weights, std::byte* stored, std::byte*) {
  for (int64_t r = 0; r < weights.extent(0); ++r) {
    const std::span<const float> row = row_of(weights, r);
    require_finite_row(name, row, r);
    if (!row.empty()) stored = static_cast<std::byte*>(std::memcpy(stored, row.data(), row.size_bytes())) + row.size_bytes();
  }
}

void widen_f32(const WeightMatrix& weights, int64_t row, float* out) { std::memcpy(out, weights.row(row), weights.row_bytes()); }

// --- bf16 ---

void store_bf16(std::string_view name, View2 weights, std::byte* stored, std::byte*) {
  for (int64_t r = 0; r < weights.extent(0); ++r) {
    for (int64_t c = 0; c < weights.extent(1); ++c, stored += sizeof(BFloat16)) {
      const float weight = row_of(weights, r)[static_cast<size_t>(c)];
      const BFloat16 rounded = BFloat16::from_float(weight);
      require(std::isfinite(rounded.to_float()), "store_weights: {}[{}, {}] is {}, expected a finite number that fits bf16", name,
              r, c, weight);
      std::memcpy(stored, &rounded, sizeof(rounded));
    }
  }
}

void widen_bf16(const WeightMatrix& weights, int64_t row, float* out) {
  const auto* from = static_cast<const BFloat16*>(weights.row(row));
  std::transform(from, from + weights.columns, out, [](BFloat16 element) { return element.to_float(); });
}

// --- int8 ---

void store_int8(std::string_view name, View2 weights, std::byte* stored, std::byte* scales) {
  constexpr float kMax = 127.0f;
  for (int64_t r = 0; r < weights.extent(0); ++r, scales += sizeof(float)) {
    const std::span<const float> row = row_of(weights, r);
    require_finite_row(name, row, r);
    float max = 0.0f;
    for (const float weight : row) max = std::max(max, std::abs(weight));
    const float scale = max / kMax;
    std::memcpy(scales, &scale, sizeof(scale));
    for (const float weight : row) {
      // A scale that underflows, or loses bits as a subnormal, would make elements exceed 127.
      const float element = scale == 0.0f ? 0.0f : std::nearbyint(weight / scale);
      *stored++ = static_cast<std::byte>(static_cast<int8_t>(std::clamp(element, -kMax, kMax)));
    }
  }
}

void widen_int8(const WeightMatrix& weights, int64_t row, float* out) {
  const auto* from = static_cast<const int8_t*>(weights.row(row));
  const float scale = weights.row_scales()[row];
  std::transform(from, from + weights.columns, out, [scale](int8_t element) { return scale * static_cast<float>(element); });
}

// --- int4 ---

struct QuantizedGroup {
  BFloat16 scale = BFloat16::from_float(0.0f);
  std::array<int8_t, kGroup> elements = {};
  double error = 0;  // sum of squares
};

QuantizedGroup quantize_group(std::span<const float> weights, BFloat16 scale) {
  QuantizedGroup group{.scale = scale};
  const float step = scale.to_float();
  for (size_t i = 0; i < weights.size(); ++i) {
    const float element = step == 0.0f ? 0.0f : std::clamp(std::nearbyint(weights[i] / step), -8.0f, 7.0f);
    group.elements[i] = static_cast<int8_t>(element);
    const double difference = static_cast<double>(weights[i]) - static_cast<double>(step) * static_cast<double>(element);
    group.error += difference * difference;
  }
  return group;
}

// The scale that is best for these elements: least squares.
BFloat16 fitted_scale(std::span<const float> weights, const QuantizedGroup& group) {
  double product = 0, square = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    product += static_cast<double>(weights[i]) * group.elements[i];
    square += static_cast<double>(group.elements[i]) * group.elements[i];
  }
  return square == 0 ? group.scale : BFloat16::from_float(static_cast<float>(product / square));
}

// Elements reach from -8 to 7, so the weight of largest magnitude takes the longer side: the scale has the opposite sign. A
// smaller scale cuts that weight off and is finer for all others; which one is best depends on the group.
QuantizedGroup best_group(std::span<const float> weights) {
  float extreme = 0.0f;
  for (const float weight : weights) {
    if (std::abs(weight) > std::abs(extreme)) extreme = weight;
  }
  QuantizedGroup best = quantize_group(weights, BFloat16::from_float(extreme / -8.0f));
  for (const float steps : {-9.0f, -8.5f, -8.0f, -7.5f, -7.0f, -6.5f, -6.0f, 6.0f, 6.5f, 7.0f, 7.5f}) {
    const QuantizedGroup tried = quantize_group(weights, BFloat16::from_float(extreme / steps));
    const QuantizedGroup fitted = quantize_group(weights, fitted_scale(weights, tried));
    for (const QuantizedGroup& one : {tried, fitted}) {
      if (one.error < best.error && std::isfinite(one.scale.to_float())) best = one;
    }
  }
  return best;
}

void store_int4(std::string_view name, View2 weights, std::byte* stored, std::byte* scales) {
  constexpr size_t kHalf = kGroup / 2;
  for (int64_t r = 0; r < weights.extent(0); ++r) {
    const std::span<const float> row = row_of(weights, r);
    require_finite_row(name, row, r);
    for (size_t first = 0; first < row.size(); first += kGroup, stored += kHalf, scales += sizeof(BFloat16)) {
      const QuantizedGroup group = best_group(row.subspan(first, std::min(kGroup, row.size() - first)));
      std::memcpy(scales, &group.scale, sizeof(group.scale));
      for (size_t i = 0; i < kHalf; ++i) {
        stored[i] = static_cast<std::byte>((group.elements[i] + kNibbleZero) | ((group.elements[i + kHalf] + kNibbleZero) << 4));
      }
    }
  }
}

void widen_int4(const WeightMatrix& weights, int64_t row, float* out) {
  const auto* from = static_cast<const uint8_t*>(weights.row(row));
  const BFloat16* scales = weights.group_scales(row);
  for (int64_t c = 0; c < weights.columns; ++c) {
    const int64_t group = c / kWeightGroup, within = c % kWeightGroup;
    const uint8_t pair = from[group * (kWeightGroup / 2) + within % (kWeightGroup / 2)];
    const int nibble = within < kWeightGroup / 2 ? pair & 15 : pair >> 4;
    out[c] = scales[group].to_float() * static_cast<float>(nibble - kNibbleZero);
  }
}

using Scales = WeightFormat::Scales;

// Models of type int4 keep embeddings and output in int8: stories260K has 1.609 nats per token so, and 1.632 with these in int4,
// too (fp32: 1.517; scripts/quantize.sh).
constexpr WeightFormat kFormats[] = {
    {WeightType::f32, "F32", 4, 1, 4, Scales::none, nullptr, 0, false, WeightType::f32, store_f32, widen_f32},
    {WeightType::bf16, "BF16", 2, 1, 2, Scales::none, nullptr, 0, false, WeightType::bf16, store_bf16, widen_bf16},
    {WeightType::int8, "I8", 1, 1, 1, Scales::row, "F32", 4, true, WeightType::int8, store_int8, widen_int8},
    {WeightType::int4, "U8", 1, kWeightGroup, kGroup / 2, Scales::group, "BF16", 2, true, WeightType::int8, store_int4,
     widen_int4},
};

}  // namespace

std::span<const WeightFormat> weight_formats() { return kFormats; }

const WeightFormat& format_of(WeightType type) { return kFormats[static_cast<size_t>(type)]; }

void copy_row(const WeightMatrix& weights, int64_t row, std::span<float> out) {
  require(row >= 0 && row < weights.rows, "copy_row: row is {}, expected 0 to {}", row, weights.rows - 1);
  require(out.size() == static_cast<size_t>(weights.columns), "copy_row: out has {} elements, expected {} (columns)", out.size(),
          weights.columns);
  if (!out.empty()) weights.format().widen_row(weights, row, out.data());
}

StoredWeights store_weights(std::string_view name, View2 weights, WeightType type) {
  const int64_t rows = weights.extent(0), columns = weights.extent(1);
  require_dtype("store_weights", name, weights, {DType::f32});
  require_shape("store_weights", name, weights, {rows, columns}, "its own");
  require(columns < 2 || weights.stride(1) == 1, "store_weights: {} has columns {} elements apart, expected 1", name,
          weights.stride(1));
  const WeightFormat& format = format_of(type);
  StoredWeights stored{.matrix = {.type = type, .rows = rows, .columns = columns},
                       .elements = std::vector<std::byte>(static_cast<size_t>(rows) * format.row_bytes(columns)),
                       .scales = std::vector<std::byte>(static_cast<size_t>(rows) * format.row_scale_bytes(columns))};
  format.store(name, weights, stored.elements.data(), stored.scales.data());
  stored.matrix.data = stored.elements.data();
  stored.matrix.scales = stored.scales.empty() ? nullptr : stored.scales.data();
  return stored;
}

}  // namespace raffia::internal
