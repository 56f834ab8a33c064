#include "io/formats/weight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr std::string_view kScale = "_scale";
constexpr int64_t kBlockFloats = 1 << 20;  // 4 MiB of rows at a time

int64_t row_size(const WeightSource& source) {
  return source.shape.empty() ? 1 : element_count(std::span(source.shape).subspan(1)).value_or(0);
}

int64_t row_count(const WeightSource& source) { return source.shape.empty() ? 1 : source.shape.front(); }

// Files are little-endian, and so is every machine that kernels are compiled for.
template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

void require_finite(std::string_view name, std::span<const float> weights) {
  const auto bad = std::ranges::find_if_not(weights, [](float weight) { return std::isfinite(weight); });
  require(bad == weights.end(), "write_weights: {} holds {}, expected finite numbers", name, bad == weights.end() ? 0.0F : *bad);
}

class Storage {
 public:
  Storage(SafetensorsWriter& file, StorageReport& report) : file_(file), report_(report) {}

  void store(const WeightSource& source, WeightType type) {
    const int64_t rows = row_count(source), columns = row_size(source);
    const int64_t block = std::max<int64_t>(1, kBlockFloats / std::max<int64_t>(1, columns));
    std::vector<float> scales;
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      floats_.resize(static_cast<size_t>(count * columns));
      source.read(first, floats_);
      switch (type) {
        case WeightType::f32:
          require_finite(source.name, floats_);
          file_.write(bytes_of(floats_));
          break;
        case WeightType::bf16:
          rounded_.resize(floats_.size());
          round_weights(source.name, floats_, rounded_);
          file_.write(bytes_of(rounded_));
          break;
        case WeightType::int8:
          quantized_.resize(floats_.size());
          scales.resize(static_cast<size_t>(first + count));
          quantize_rows(source.name, View2(floats_.data(), {count, columns}), quantized_,
                        std::span(scales).subspan(static_cast<size_t>(first)));
          file_.write(bytes_of(quantized_));
          break;
      }
      if (source.is_matrix)
        compare(source, type, std::span(scales).subspan(scales.empty() ? 0 : static_cast<size_t>(first)), count, columns);
    }
    if (source.is_matrix) ++report_.matrices;
    if (type == WeightType::int8) file_.write(bytes_of(scales));
  }

 private:
  void compare(const WeightSource& source, WeightType type, std::span<const float> scales, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) {
      double error = 0, norm = 0;
      for (int64_t c = 0; c < columns; ++c) {
        const auto i = static_cast<size_t>(r * columns + c);
        const float value = floats_[i];
        const float stored = type == WeightType::int8   ? static_cast<float>(quantized_[i]) * scales[static_cast<size_t>(r)]
                             : type == WeightType::bf16 ? rounded_[i].to_float()
                                                        : value;
        const double difference = static_cast<double>(stored) - value;
        error += difference * difference;
        norm += static_cast<double>(value) * value;
      }
      if (norm == 0) continue;
      const double relative = std::sqrt(error / norm);
      ++report_.rows;
      report_.mean += (relative - report_.mean) / static_cast<double>(report_.rows);
      if (relative > report_.worst) {
        report_.worst = relative;
        report_.worst_tensor = source.name;
      }
    }
  }

  SafetensorsWriter& file_;
  StorageReport& report_;
  std::vector<float> floats_;
  std::vector<BFloat16> rounded_;
  std::vector<int8_t> quantized_;
};

}  // namespace

const char* dtype_of(WeightType type) { return type == WeightType::f32 ? "F32" : type == WeightType::bf16 ? "BF16" : "I8"; }

std::string scale_name(std::string_view matrix) { return std::string(matrix) + std::string(kScale); }

StorageReport write_weights(const std::filesystem::path& path, std::span<const WeightSource> sources, WeightType type,
                            const std::function<void(const WeightSource&)>& progress,
                            const std::map<std::string, std::string>& metadata) {
  const auto type_of = [type](const WeightSource& source) { return source.is_matrix ? type : WeightType::f32; };
  // Larger elements first: each begins at a multiple of its size, so that a mapped file needs no copies.
  std::vector<const WeightSource*> ordered;
  for (const WeightSource& source : sources) ordered.push_back(&source);
  std::ranges::stable_sort(ordered, std::greater<>(), [&](const WeightSource* source) { return size_of(type_of(*source)); });

  std::vector<TensorHead> heads;
  for (const WeightSource* source : ordered) {
    const WeightType stored = type_of(*source);
    heads.push_back({source->name, dtype_of(stored), source->shape});
    if (stored == WeightType::int8) heads.push_back({scale_name(source->name), "F32", {row_count(*source)}});
  }
  SafetensorsWriter file(path, heads, metadata);
  StorageReport report{.bytes = file.size()};
  Storage storage(file, report);
  for (const WeightSource* source : ordered) {
    if (progress) progress(*source);
    storage.store(*source, type_of(*source));
  }
  file.commit();
  return report;
}

std::vector<WeightSource> weight_sources(const Safetensors& file, std::string_view where) {
  std::vector<WeightSource> sources;
  for (const Safetensors::Tensor& tensor : file.tensors()) {
    const auto refuse = [&](const std::string& what) {
      throw FormatError(fmt::format("{}: tensor \"{}\" {}", where, tensor.name, what));
    };
    if (tensor.begin == tensor.end) refuse(fmt::format("has shape {} and is empty", to_string(tensor.shape)));
    if (tensor.name.ends_with(kScale)) {
      const Safetensors::Tensor* of = file.find(tensor.name.substr(0, tensor.name.size() - kScale.size()));
      if (of != nullptr && of->dtype == "I8") continue;
    }
    WeightSource source{.name = tensor.name, .shape = tensor.shape, .read = {}};
    const auto columns = static_cast<uint64_t>(row_size(source));
    if (tensor.dtype != "I8") {
      if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
        refuse(fmt::format("is {}, expected F32, BF16, F16 or I8", tensor.dtype));
      }
      source.read = [&file, &tensor, columns](int64_t first_row, std::span<float> rows) {
        file.read_part(tensor, static_cast<uint64_t>(first_row) * columns, rows);
      };
    } else {
      const Safetensors::Tensor* scale = file.find(scale_name(tensor.name));
      if (scale == nullptr) refuse(fmt::format("is I8 and there is no \"{}{}\"", tensor.name, kScale));
      const std::vector<int64_t> expected = {row_count(source)};
      if (scale->dtype != "F32" || scale->shape != expected) {
        refuse(
            fmt::format("has scales {} of {}, expected F32 of {}", scale->dtype, to_string(scale->shape), to_string(expected)));
      }
      source.read = [&file, &tensor, scale, columns](int64_t first_row, std::span<float> rows) {
        std::vector<int8_t> elements(rows.size());
        file.read_bytes_part(tensor, static_cast<uint64_t>(first_row) * columns, std::as_writable_bytes(std::span(elements)));
        std::vector<float> scales(columns == 0 ? 0 : rows.size() / columns);
        file.read_part(*scale, static_cast<uint64_t>(first_row), scales);
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(elements[i]) * scales[i / columns];
      };
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

}  // namespace raffia::internal
