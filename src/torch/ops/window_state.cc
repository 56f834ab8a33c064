#include "torch/ops/window_state.h"

#include <algorithm>
#include <cmath>

#include "core/window_layout.h"

namespace raffia::internal::ops {
namespace {

constexpr int64_t kLow = int64_t{1} << 24;  // floats hold integers up to here

}  // namespace

std::vector<int64_t> tensor_shape(const WindowStateShape& shape) {
  const std::optional<raffia::detail::WindowLayout> layout = internal::layout_of(shape);
  require(layout.has_value(), "raffia: a {} state does not fit in memory", name_of(shape.kind));
  int64_t floats = 2;
  for (size_t size : layout->sizes) floats += static_cast<int64_t>(size);
  return {shape.batch, floats};
}

void require_state(const char* op, const Tensor& tensor, const WindowStateShape& shape) {
  if (!tensor.defined()) return;
  require_shape(op, "state", tensor, tensor_shape(shape), "batch of q, floats of a state with these shapes and settings");
  require_type(op, "state", tensor, {at::kFloat});
}

WindowState load_state(const Tensor& tensor, const WindowStateShape& shape) {
  WindowState state(shape);
  if (!tensor.defined()) return state;
  const Tensor all = tensor.contiguous();
  const float* data = all.data_ptr<float>();
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int i = 0; i < kWindowParts; ++i) {
      const std::span<float> part = state.part(static_cast<WindowPart>(i), b);
      std::copy_n(data, part.size(), part.data());
      data += part.size();
    }
    require(data[0] >= 0 && data[0] < kLow && data[1] >= 0 && data[1] <= kLow && std::floor(data[0]) == data[0] &&
                std::floor(data[1]) == data[1],
            "raffia: entry {} of a state ends with {}, {}, expected a number of tokens: is this tensor a state?", b, data[0],
            data[1]);
    state.tokens(b) = static_cast<int64_t>(data[0]) + kLow * static_cast<int64_t>(data[1]);
    data += 2;
  }
  return state;
}

Tensor store_state(const WindowState& state) {
  const Tensor tensor = at::empty(tensor_shape(state.shape()), at::kFloat);
  float* data = tensor.data_ptr<float>();
  for (int64_t b = 0; b < state.shape().batch; ++b) {
    for (int i = 0; i < kWindowParts; ++i) {
      const std::span<const float> part = state.part(static_cast<WindowPart>(i), b);
      data = std::copy(part.begin(), part.end(), data);
    }
    *data++ = static_cast<float>(state.tokens(b) % kLow);
    *data++ = static_cast<float>(state.tokens(b) / kLow);
  }
  return tensor;
}

}  // namespace raffia::internal::ops
