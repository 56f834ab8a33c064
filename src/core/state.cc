#include "raffia/state.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/check.h"
#include "core/state_size.h"

namespace raffia {

using namespace internal;
namespace {

// The parts of a state's memory, in order.
constexpr int kSums = 0, kNormaliser = 1, kMass = 2, kLogDecay = 3;

std::string shape_text(const StateShape& shape) {
  const int64_t extents[] = {shape.batch, shape.heads, shape.features, shape.value_dim};
  return to_string(extents, std::size(extents));
}

size_t floats_of(const StateShape& shape) {
  require(is_possible(shape), "State: shape is {}, expected [batch >= 0, heads >= 1, features >= 1, value_dim >= 1]",
          shape_text(shape));
  const std::optional<int64_t> bytes = bytes_of(shape);
  require(bytes.has_value(), "State: a state of shape {} does not fit in memory", shape_text(shape));
  return static_cast<size_t>(*bytes) / sizeof(float);
}

void require_entry(const StateShape& shape, int64_t b, int64_t h) {
  require(b >= 0 && b < shape.batch && h >= 0 && h < shape.heads,
          "State: entry {} and head {} are out of range: the state has {} entries and {} heads", b, h, shape.batch, shape.heads);
}

}  // namespace

State::State(const StateShape& shape) : shape_(shape), data_(floats_of(shape), 0.0F) {}

size_t State::offset(int part, int64_t b, int64_t h) const {
  require_entry(shape_, b, h);
  const int64_t sums = shape_.features * shape_.value_dim, heads = shape_.batch * shape_.heads, at = b * shape_.heads + h;
  switch (part) {
    case kSums:
      return static_cast<size_t>(at * sums);
    case kNormaliser:
      return static_cast<size_t>(heads * sums + at * shape_.features);
    case kMass:
      return static_cast<size_t>(heads * (sums + shape_.features) + at);
    default:
      return static_cast<size_t>(heads * (sums + shape_.features + 1) + at);
  }
}

std::span<float> State::sums(int64_t b, int64_t h) {
  return std::span(data_).subspan(offset(kSums, b, h), static_cast<size_t>(shape_.features * shape_.value_dim));
}

std::span<const float> State::sums(int64_t b, int64_t h) const {
  return std::span(data_).subspan(offset(kSums, b, h), static_cast<size_t>(shape_.features * shape_.value_dim));
}

std::span<float> State::normaliser(int64_t b, int64_t h) {
  return std::span(data_).subspan(offset(kNormaliser, b, h), static_cast<size_t>(shape_.features));
}

std::span<const float> State::normaliser(int64_t b, int64_t h) const {
  return std::span(data_).subspan(offset(kNormaliser, b, h), static_cast<size_t>(shape_.features));
}

float& State::mass(int64_t b, int64_t h) { return data_[offset(kMass, b, h)]; }

float State::mass(int64_t b, int64_t h) const { return data_[offset(kMass, b, h)]; }

float& State::log_decay(int64_t b, int64_t h) { return data_[offset(kLogDecay, b, h)]; }

float State::log_decay(int64_t b, int64_t h) const { return data_[offset(kLogDecay, b, h)]; }

void State::reset() { std::fill(data_.begin(), data_.end(), 0.0F); }

State State::select(std::span<const int64_t> indices) const {
  for (size_t i = 0; i < indices.size(); ++i) {
    require(indices[i] >= 0 && indices[i] < shape_.batch, "State::select: indices[{}] is {}, expected an entry of a batch of {}",
            i, indices[i], shape_.batch);
  }
  State result(StateShape{static_cast<int64_t>(indices.size()), shape_.heads, shape_.features, shape_.value_dim});
  for (size_t i = 0; i < indices.size(); ++i) {
    const int64_t to = static_cast<int64_t>(i), from = indices[i];
    for (int64_t h = 0; h < shape_.heads; ++h) {
      std::ranges::copy(sums(from, h), result.sums(to, h).begin());
      std::ranges::copy(normaliser(from, h), result.normaliser(to, h).begin());
      result.mass(to, h) = mass(from, h);
      result.log_decay(to, h) = log_decay(from, h);
    }
  }
  return result;
}

State State::compose(const State& earlier, const State& later) {
  require(earlier.shape_ == later.shape_, "State::compose: later has shape {}, expected {} (the shape of earlier)",
          shape_text(later.shape_), shape_text(earlier.shape_));
  State result = later;
  for (int64_t b = 0; b < result.shape_.batch; ++b) {
    for (int64_t h = 0; h < result.shape_.heads; ++h) {
      const float decay = std::exp(later.log_decay(b, h));
      const auto add = [decay](std::span<const float> before, std::span<float> after) {
        for (size_t i = 0; i < after.size(); ++i) after[i] += decay * before[i];
      };
      add(earlier.sums(b, h), result.sums(b, h));
      add(earlier.normaliser(b, h), result.normaliser(b, h));
      result.mass(b, h) += decay * earlier.mass(b, h);
      result.log_decay(b, h) += earlier.log_decay(b, h);
    }
  }
  return result;
}

}  // namespace raffia
