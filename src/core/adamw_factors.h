// What one step of AdamW multiplies by, for the kernel and its twin.
#ifndef RAFFIA_CORE_ADAMW_FACTORS_H_
#define RAFFIA_CORE_ADAMW_FACTORS_H_

namespace raffia::internal {

// With g the scaled gradient:  m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
// p = keep p - rate m / (sqrt(v) / root + eps)
struct AdamwFactors {
  double scale = 1;                  // of the gradient
  double beta1 = 0.9, beta2 = 0.98;  // decay of the two means
  double keep = 1;                   // 1 - learning rate * weight decay
  double rate = 0;                   // learning rate / (1 - beta1^step)
  double root = 1;                   // sqrt(1 - beta2^step)
  double eps = 1e-8;
};

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_ADAMW_FACTORS_H_
