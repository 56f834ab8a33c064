// Products of rows with the linear layers of a model.
#ifndef RAFFIA_RUNTIME_PRODUCTS_H_
#define RAFFIA_RUNTIME_PRODUCTS_H_

#include <cstdint>
#include <initializer_list>
#include <span>

#include "runtime/turn.h"
#include "runtime/weights.h"

namespace raffia::internal::runtime {

// y [rows, out] = x [rows, in] weight^T + bias; strides in floats from row to row.
struct Product {
  const Linear* linear;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
};

// Computes all products for the rows of the turn in one parallel region.
void multiply(std::span<const Product> products, const Turn& turn);
inline void multiply(std::initializer_list<Product> products, const Turn& turn) {
  multiply(std::span(products.begin(), products.size()), turn);
}

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_PRODUCTS_H_
