#include "torch/ops/state.h"

#include <algorithm>

namespace raffia::internal::ops {
namespace {

// Calls each(part of the state, its data in the tensor) for every part: sums, normaliser, mass, log decay.
template <class Number, class Parts, class Each>
void visit(const StateShape& shape, Number* data, const Parts& parts, const Each& each) {
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      for (const auto& part : parts(b, h)) {
        each(part, data);
        data += part.size();
      }
    }
  }
}

std::array<std::span<float>, 4> parts_of(State& state, int64_t b, int64_t h) {
  return {state.sums(b, h), state.normaliser(b, h), std::span(&state.mass(b, h), 1), std::span(&state.log_decay(b, h), 1)};
}

std::array<std::span<double>, 4> parts_of(reference::Memory& memory, int64_t b, int64_t h) {
  const size_t at = memory.head_at(b, h);
  return {memory.sums_at(b, h), memory.normaliser_at(b, h), std::span(&memory.mass[at], 1), std::span(&memory.log_decay[at], 1)};
}

template <class Number, class Memory>
Memory load(const Tensor& tensor, const StateShape& shape) {
  Memory memory(shape);
  if (!tensor.defined()) return memory;
  const Tensor contiguous = tensor.contiguous();
  visit(
      shape, contiguous.data_ptr<Number>(), [&](int64_t b, int64_t h) { return parts_of(memory, b, h); },
      [](std::span<Number> part, const Number* data) { std::copy_n(data, part.size(), part.data()); });
  return memory;
}

template <class Number, class Memory>
Tensor store(Memory& memory, const StateShape& shape) {
  const Tensor tensor = at::empty(tensor_shape(shape), c10::CppTypeToScalarType<Number>::value);
  visit(
      shape, tensor.data_ptr<Number>(), [&](int64_t b, int64_t h) { return parts_of(memory, b, h); },
      [](std::span<Number> part, Number* data) { std::copy_n(part.data(), part.size(), data); });
  return tensor;
}

}  // namespace

std::vector<int64_t> tensor_shape(const StateShape& shape) {
  return {shape.batch, shape.heads, shape.features * (shape.value_dim + 1) + 2};
}

State load_state(const Tensor& tensor, const StateShape& shape) { return load<float, State>(tensor, shape); }

reference::Memory load_memory(const Tensor& tensor, const StateShape& shape) {
  return load<double, reference::Memory>(tensor, shape);
}

Tensor store_state(State& state) { return store<float>(state, state.shape()); }

Tensor store_memory(reference::Memory& memory) { return store<double>(memory, memory.shape); }

}  // namespace raffia::internal::ops
