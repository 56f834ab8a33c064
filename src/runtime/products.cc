#include "runtime/products.h"

#include <array>

#include "core/check.h"
#include "estimators/shared/products.h"

namespace raffia::internal::runtime {

void multiply(std::span<const Product> products, const Turn& turn) {
  std::array<LinearTask, 4> tasks;  // as many as share an input: q, k, v and a gate
  require(products.size() <= tasks.size(), "multiply: {} products, expected at most {}", products.size(), tasks.size());
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& one = products[i];
    const WeightMatrix& weight = one.linear->weight;
    tasks[i] = {.weights = weight,
                .bias = one.linear->bias_or_null(),
                .x = View2(one.x, {turn.rows, weight.columns}, {one.x_stride, 1}),
                .y = MutView2(one.y, {turn.rows, weight.rows}, {one.y_stride, 1}),
                // The rows of a step belong to different sessions, whose results must not depend on each other.
                .any_company = turn.form == Turn::Form::step};
  }
  linear(std::span(tasks).first(products.size()), turn.run);
}

}  // namespace raffia::internal::runtime
