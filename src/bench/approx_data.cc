#include "bench/approx_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "io/formats/npy.h"
#include "io/formats/safetensors.h"
#include "raffia/error.h"
#include "raffia/random.h"

namespace raffia::internal::bench {
namespace {

enum DrawnMatrix : uint32_t { kTokens, kQueryMatrix, kKeyMatrix, kValueMatrix, kKeys, kValues };

// No estimator has so many heads: data and random features of one seed share no random numbers.
constexpr uint32_t kHeadOfData = UINT32_MAX;

// [rows, columns], row-major.
struct Matrix {
  int64_t rows, columns;
  std::vector<double> values;

  double* row(int64_t i) { return values.data() + i * columns; }
  const double* row(int64_t i) const { return values.data() + i * columns; }
};

Matrix random_matrix(int64_t rows, int64_t columns, double scale, uint64_t seed, DrawnMatrix stream) {
  Matrix matrix{rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
  RandomStream random({.seed = seed, .layer = stream, .head = kHeadOfData});
  for (double& value : matrix.values) value = scale * random.next_normal();
  return matrix;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix result{a.rows, b.columns, std::vector<double>(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t l = 0; l < a.columns; ++l) {
      for (int64_t j = 0; j < b.columns; ++j) result.row(i)[j] += a.row(i)[l] * b.row(l)[j];
    }
  }
  return result;
}

// Every coordinate has a mean of 0 and a variance of 1 over the sequence.
void normalise(Matrix& x) {
  for (int64_t j = 0; j < x.columns; ++j) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < x.rows; ++i) sum += x.row(i)[j];
    const double mean = sum / static_cast<double>(x.rows);
    for (int64_t i = 0; i < x.rows; ++i) squares += (x.row(i)[j] - mean) * (x.row(i)[j] - mean);
    const double deviation = std::sqrt(squares / static_cast<double>(x.rows));
    for (int64_t i = 0; i < x.rows; ++i) x.row(i)[j] = deviation > 0 ? (x.row(i)[j] - mean) / deviation : 0;
  }
}

// x_t = rho x_{t-1} + step n_t over the rows n_t.
void accumulate(Matrix& x, double rho, double step) {
  for (int64_t i = 1; i < x.rows; ++i) {
    for (int64_t j = 0; j < x.columns; ++j) x.row(i)[j] = rho * x.row(i - 1)[j] + step * x.row(i)[j];
  }
}

std::vector<float> floats_of(const Matrix& matrix, double scale) {
  std::vector<float> values;
  values.reserve(matrix.values.size());
  for (const double value : matrix.values) values.push_back(static_cast<float>(scale * value));
  return values;
}

// Arrays with the name that messages give them: "q.npy", or "m.safetensors: q".
struct Loaded {
  std::string where;
  FloatArray array;
};

Extents<4> shape_of(const Loaded& loaded) {
  const std::vector<int64_t>& shape = loaded.array.shape;
  Extents<4> full{};
  if (shape.size() == 2) {
    full = {1, shape[0], 1, shape[1]};
  } else if (shape.size() == 3) {
    full = {1, shape[0], shape[1], shape[2]};
  } else if (shape.size() == 4) {
    full = {shape[0], shape[1], shape[2], shape[3]};
  } else {
    throw FormatError(
        fmt::format("{}: shape {}, expected [T, D], [T, H, D] or [B, T, H, D]", loaded.where, to_string(std::span(shape))));
  }
  if (loaded.array.values.empty()) {
    throw FormatError(fmt::format("{}: shape {}, expected at least one element", loaded.where, to_string(std::span(shape))));
  }
  return full;
}

void require_finite(const Loaded& loaded) {
  const std::vector<float>& values = loaded.array.values;
  const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad == values.end()) return;
  std::vector<int64_t> place(loaded.array.shape.size());
  int64_t rest = bad - values.begin();
  for (size_t axis = place.size(); axis-- > 0; rest /= loaded.array.shape[axis]) place[axis] = rest % loaded.array.shape[axis];
  throw FormatError(fmt::format("{}: element {} is {}, expected a finite number", loaded.where,
                                to_string(std::span<const int64_t>(place)), *bad));
}

void require_extent(const Loaded& loaded, const char* what, int64_t found, int64_t expected, const Loaded& other) {
  if (found == expected) return;
  throw FormatError(fmt::format("{}: {} {}, expected {} (as {} has)", loaded.where, found, what, expected, other.where));
}

}  // namespace

Qkv generate(DataSet data, double scale, int64_t length, int64_t dim, uint64_t seed) {
  const Extents<4> shape{1, length, 1, dim};
  Qkv qkv{.q_shape = shape, .k_shape = shape, .v_shape = shape};
  Matrix x = random_matrix(length, dim, 1, seed, kTokens);
  if (data == DataSet::iid) {
    qkv.q = floats_of(x, scale);
    qkv.k = floats_of(random_matrix(length, dim, 1, seed, kKeys), scale);
    qkv.v = floats_of(random_matrix(length, dim, 1, seed, kValues), 1);
    return qkv;
  }
  if (data == DataSet::walk) {
    constexpr double kRho = 0.98;
    accumulate(x, kRho, std::sqrt(1 - kRho * kRho));
  } else {
    accumulate(x, 1, 1);
    normalise(x);
  }
  const double unit = 1 / std::sqrt(static_cast<double>(dim));
  const Matrix query = random_matrix(dim, dim, unit, seed, kQueryMatrix);
  Matrix key = random_matrix(dim, dim, unit, seed, kKeyMatrix);
  for (size_t i = 0; i < key.values.size(); ++i) key.values[i] = 0.7 * query.values[i] + 0.71 * key.values[i];
  qkv.q = floats_of(product(x, query), scale);
  qkv.k = floats_of(product(x, key), scale);
  qkv.v = floats_of(product(x, random_matrix(dim, dim, unit, seed, kValueMatrix)), 1);
  return qkv;
}

Qkv load(const std::vector<std::string>& files, const std::vector<std::string>& names) {
  std::array<Loaded, 3> all;
  if (files.size() == 1) {
    const Safetensors tensors = Safetensors::open(files[0]);
    for (size_t i = 0; i < 3; ++i) all[i] = {fmt::format("{}: tensor \"{}\"", files[0], names[i]), tensors.read(names[i])};
  } else {
    for (size_t i = 0; i < 3; ++i) all[i] = {files[i], read_npy(files[i])};
  }
  auto& [q, k, v] = all;
  Qkv qkv{.q_shape = shape_of(q), .k_shape = shape_of(k), .v_shape = shape_of(v)};
  require_extent(k, "batch entries", qkv.k_shape[0], qkv.q_shape[0], q);
  require_extent(v, "batch entries", qkv.v_shape[0], qkv.q_shape[0], q);
  require_extent(k, "tokens", qkv.k_shape[1], qkv.q_shape[1], q);
  require_extent(v, "tokens", qkv.v_shape[1], qkv.k_shape[1], k);
  require_extent(v, "heads", qkv.v_shape[2], qkv.k_shape[2], k);
  require_extent(k, "numbers per head", qkv.k_shape[3], qkv.q_shape[3], q);
  if (qkv.q_shape[2] % qkv.k_shape[2] != 0) {
    throw FormatError(fmt::format("{}: {} heads, expected a multiple of {} (the heads of {})", q.where, qkv.q_shape[2],
                                  qkv.k_shape[2], k.where));
  }
  for (const Loaded& each : all) require_finite(each);
  qkv.q = std::move(q.array.values);
  qkv.k = std::move(k.array.values);
  qkv.v = std::move(v.array.values);
  return qkv;
}

}  // namespace raffia::internal::bench
