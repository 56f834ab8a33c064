#include "raffia/state.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/state_size.h"

namespace raffia {
namespace {

std::string to_string(const StateShape& shape) {
  const int64_t extents[] = {shape.batch, shape.heads, shape.features, shape.value_dim};
  return raffia::to_string(extents, std::size(extents));
}

size_t floats_of(const StateShape& shape) {
  require(is_possible(shape), "State: shape is {}, expected [batch >= 0, heads >= 1, features >= 1, value_dim >= 1]",
          to_string(shape));
  const std::optional<int64_t> bytes = bytes_of(shape);
  require(bytes.has_value(), "State: a state of shape {} does not fit in memory", to_string(shape));
  return static_cast<size_t>(*bytes) / sizeof(float);
}

void require_entry(const StateShape& shape, int64_t b, int64_t h) {
  require(b >= 0 && b < shape.batch && h >= 0 && h < shape.heads,
          "State: entry {} and head {} of a state of {} entries and {} heads", b, h, shape.batch, shape.heads);
}

}  // namespace

State::State(const StateShape& shape) : shape_(shape), data_(floats_of(shape), 0.0F) {}

std::span<float> State::sums(int64_t b, int64_t h) {
  require_entry(shape_, b, h);
  return std::span(data_).subspan(offset(b, h), static_cast<size_t>(shape_.features * shape_.value_dim));
}

std::span<const float> State::sums(int64_t b, int64_t h) const {
  require_entry(shape_, b, h);
  return std::span(data_).subspan(offset(b, h), static_cast<size_t>(shape_.features * shape_.value_dim));
}

std::span<float> State::normaliser(int64_t b, int64_t h) {
  require_entry(shape_, b, h);
  return std::span(data_).subspan(offset(b, h) + static_cast<size_t>(shape_.features * shape_.value_dim),
                                  static_cast<size_t>(shape_.features));
}

std::span<const float> State::normaliser(int64_t b, int64_t h) const {
  require_entry(shape_, b, h);
  return std::span(data_).subspan(offset(b, h) + static_cast<size_t>(shape_.features * shape_.value_dim),
                                  static_cast<size_t>(shape_.features));
}

float& State::mass(int64_t b, int64_t h) {
  require_entry(shape_, b, h);
  return data_[offset(b, h) + static_cast<size_t>(head_floats() - 2)];
}

float State::mass(int64_t b, int64_t h) const {
  require_entry(shape_, b, h);
  return data_[offset(b, h) + static_cast<size_t>(head_floats() - 2)];
}

float& State::log_decay(int64_t b, int64_t h) {
  require_entry(shape_, b, h);
  return data_[offset(b, h) + static_cast<size_t>(head_floats() - 1)];
}

float State::log_decay(int64_t b, int64_t h) const {
  require_entry(shape_, b, h);
  return data_[offset(b, h) + static_cast<size_t>(head_floats() - 1)];
}

void State::reset() { std::fill(data_.begin(), data_.end(), 0.0F); }

State State::select(std::span<const int64_t> indices) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] >= 0 && indices[i] < shape_.batch, "State::select: indices[{}] is {}, expected an entry of a batch of {}",
            i, indices[i], shape_.batch);
  }
  State result(StateShape{static_cast<int64_t>(indices.size()), shape_.heads, shape_.features, shape_.value_dim});
  const size_t entry = static_cast<size_t>(shape_.heads * head_floats());
  for (size_t i = 0; i < indices.size(); ++i) {
    std::copy_n(data_.begin() + static_cast<std::ptrdiff_t>(offset(indices[i], 0)), entry,
                result.data_.begin() + static_cast<std::ptrdiff_t>(i * entry));
  }
  return result;
}

State State::compose(const State& earlier, const State& later) {
  require(earlier.shape_ == later.shape_, "State::compose: later has shape {}, expected {} (the shape of earlier)",
          to_string(later.shape_), to_string(earlier.shape_));
  State result = later;
  const size_t head = static_cast<size_t>(result.head_floats());
  for (size_t begin = 0; begin < result.data_.size(); begin += head) {
    const std::span<const float> before = std::span(earlier.data_).subspan(begin, head);
    const std::span<float> after = std::span(result.data_).subspan(begin, head);
    const float decay = std::exp(after.back());
    for (size_t i = 0; i + 1 < head; ++i) after[i] += decay * before[i];
    after.back() += before.back();
  }
  return result;
}

}  // namespace raffia
