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

// Files are little-endian, and so is every machine that kernels are compiled for: stored weights are written as they are.
class Storage {
 public:
  Storage(SafetensorsWriter& file, StorageReport& report) : file_(file), report_(report) {}

  void store(const WeightSource& source, WeightType type) {
    const int64_t rows = row_count(source), columns = row_size(source);
    const int64_t block = std::max<int64_t>(1, kBlockFloats / std::max<int64_t>(1, columns));
    std::vector<std::byte> scales;
    for (int64_t first = 0; first < rows; first += block) {
      const int64_t count = std::min(block, rows - first);
      floats_.resize(static_cast<size_t>(count * columns));
      source.read(first, floats_);
      const StoredWeights stored = store_weights(source.name, View2(floats_.data(), {count, columns}), type);
      file_.write(stored.elements);
      scales.insert(scales.end(), stored.scales.begin(), stored.scales.end());
      if (source.is_matrix) compare(source.name, stored.matrix);
    }
    if (source.is_matrix) ++report_.matrices;
    if (!scales.empty()) file_.write(scales);
  }

 private:
  void compare(const std::string& name, const WeightMatrix& stored) {
    std::vector<float> row(static_cast<size_t>(stored.columns));
    for (int64_t r = 0; r < stored.rows; ++r) {
      copy_row(stored, r, row);
      double error = 0, norm = 0;
      for (size_t c = 0; c < row.size(); ++c) {
        const double value = floats_[static_cast<size_t>(r) * row.size() + c];
        const double difference = row[c] - value;
        error += difference * difference;
        norm += value * value;
      }
      if (norm == 0) continue;
      const double relative = std::sqrt(error / norm);
      ++report_.rows;
      report_.mean += (relative - report_.mean) / static_cast<double>(report_.rows);
      if (relative > report_.worst) {
        report_.worst = relative;
        report_.worst_tensor = name;
      }
    }
  }

  SafetensorsWriter& file_;
  StorageReport& report_;
  std::vector<float> floats_;
};

}  // namespace

const WeightFormat* find_weight_format(std::string_view element) {
  const auto found = std::ranges::find(weight_formats(), element, &WeightFormat::element);
  return found == weight_formats().end() ? nullptr : &*found;
}

std::string scale_name(std::string_view matrix) { return std::string(matrix) + std::string(kScale); }

std::vector<int64_t> stored_shape(const WeightFormat& format, int64_t rows, int64_t columns) {
  return {rows, static_cast<int64_t>(format.row_bytes(columns) / format.element_bytes)};
}

std::vector<int64_t> scale_shape(const WeightFormat& format, int64_t rows, int64_t columns) {
  if (format.scales == WeightFormat::Scales::row) return {rows};
  return {rows, format.row_scales(columns)};
}

StoredTensor stored_tensor(const Safetensors& file, const Safetensors::Tensor& tensor, std::span<const int64_t> shape,
                           std::string_view where) {
  const auto refuse = [&](const std::string& what) {
    throw FormatError(fmt::format("{}: tensor \"{}\" {}", where, tensor.name, what));
  };
  const WeightFormat* format = find_weight_format(tensor.dtype);
  if (format == nullptr || shape.size() != 2) {
    std::vector<std::string_view> elements;
    for (const WeightFormat& one : weight_formats()) elements.push_back(one.element);
    refuse(fmt::format("is {}, expected one of {}", tensor.dtype, fmt::join(elements, ", ")));
  }
  const std::vector<int64_t> expected = stored_shape(*format, shape[0], shape[1]);
  if (tensor.shape != expected) {
    const std::string why = format->group > 1 ? fmt::format(" ({} of {})", name_of(format->type), to_string(shape)) : "";
    refuse(fmt::format("has shape {}, expected {}{}", to_string(tensor.shape), to_string(expected), why));
  }
  StoredTensor stored{.format = format, .elements = &tensor, .scales = nullptr};
  if (format->scales == WeightFormat::Scales::none) return stored;
  const std::string name = scale_name(tensor.name);
  stored.scales = file.find(name);
  if (stored.scales == nullptr) refuse(fmt::format("is {}, and its scales \"{}\" are missing", tensor.dtype, name));
  const std::vector<int64_t> scales = scale_shape(*format, shape[0], shape[1]);
  if (stored.scales->dtype != format->scale || stored.scales->shape != scales) {
    refuse(fmt::format("has scales {} of {}, expected {} of {}", stored.scales->dtype, to_string(stored.scales->shape),
                       format->scale, to_string(scales)));
  }
  return stored;
}

StorageReport write_weights(const std::filesystem::path& path, std::span<const WeightSource> sources, WeightType type,
                            const std::function<void(const WeightSource&)>& progress,
                            const std::map<std::string, std::string>& metadata) {
  const auto type_of = [type](const WeightSource& source) {
    return source.is_matrix ? type_in_model(type, source.is_vocabulary) : WeightType::f32;
  };
  // Larger elements first: each begins at a multiple of its size, so that a mapped file needs no copies.
  std::vector<const WeightSource*> ordered;
  for (const WeightSource& source : sources) ordered.push_back(&source);
  std::ranges::stable_sort(ordered, std::greater<>(),
                           [&](const WeightSource* source) { return format_of(type_of(*source)).element_bytes; });

  std::vector<TensorHead> heads;
  for (const WeightSource* source : ordered) {
    const WeightFormat& format = format_of(type_of(*source));
    if (!source->is_matrix) {
      heads.push_back({source->name, format.element, source->shape});
      continue;
    }
    const int64_t rows = row_count(*source), columns = row_size(*source);
    heads.push_back({source->name, format.element, stored_shape(format, rows, columns)});
    if (format.scales != WeightFormat::Scales::none) {
      heads.push_back({scale_name(source->name), format.scale, scale_shape(format, rows, columns)});
    }
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

WeightSource weight_source(const Safetensors& file, const Safetensors::Tensor& tensor, std::span<const int64_t> shape,
                           bool is_matrix, std::string_view where) {
  WeightSource source{.name = tensor.name, .shape = {shape.begin(), shape.end()}, .read = {}, .is_matrix = is_matrix};
  if (tensor.begin == tensor.end) {
    throw FormatError(fmt::format("{}: tensor \"{}\" has shape {} and is empty", where, tensor.name, to_string(tensor.shape)));
  }
  const int64_t columns = row_size(source);
  if (!is_matrix && tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
    throw FormatError(fmt::format("{}: tensor \"{}\" is {}, expected F32, BF16 or F16", where, tensor.name, tensor.dtype));
  }
  if (!is_matrix || tensor.dtype == "F16") {
    source.read = [&file, &tensor, columns](int64_t first_row, std::span<float> rows) {
      file.read_part(tensor, static_cast<uint64_t>(first_row * columns), rows);
    };
    return source;
  }
  const StoredTensor stored = stored_tensor(file, tensor, shape, where);
  source.read = [&file, stored, columns](int64_t first_row, std::span<float> rows) {
    const WeightFormat& format = *stored.format;
    const auto first = static_cast<uint64_t>(first_row);
    const size_t count = columns == 0 ? 0 : rows.size() / static_cast<size_t>(columns);
    std::vector<std::byte> elements(count * format.row_bytes(columns)), scales(count * format.row_scale_bytes(columns));
    file.read_bytes_part(*stored.elements, first * format.row_bytes(columns), elements);
    if (!scales.empty()) file.read_bytes_part(*stored.scales, first * format.row_scale_bytes(columns), scales);
    const WeightMatrix matrix{format.type, elements.data(), scales.data(), static_cast<int64_t>(count), columns};
    for (size_t r = 0; r < count; ++r) {
      copy_row(matrix, static_cast<int64_t>(r), rows.subspan(r * static_cast<size_t>(columns), static_cast<size_t>(columns)));
    }
  };
  return source;
}

}  // namespace raffia::internal
