// Ops of a model besides attention, for timing: products with stored weights, layer ops and feature maps.
#ifndef RAFFIA_BENCH_KERNEL_OPS_H_
#define RAFFIA_BENCH_KERNEL_OPS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/op_form.h"
#include "raffia/threads.h"

namespace raffia::internal::bench {

// A kernel op at one shape.
struct KernelRun {
  std::string shape;                 // "[16, 512] x [512, 512]"
  DType dtype = DType::f32;          // of inputs and outputs
  std::optional<double> flops = {};  // nullopt: not counted, most of the time is not spent in multiply-adds
  bool is_parallel = true;           // false: runs on one thread whatever it is told
  std::function<std::function<void()>(int threads, Executor& executor)> prepare;  // allocates its arrays
};

// "product_f32", "layer_norm", "features_trig", ..
std::vector<std::string> kernel_op_names();

// What the op of that name is measured at: products with 1, 4, 16 and 512 tokens, everything else with `length` tokens. Models
// are as wide as all heads together. Empty if there is no such op. Throws OptionError for a shape that it cannot have.
std::vector<KernelRun> runs_of_kernel_op(const BenchShape& shape, int64_t length, const std::string& name);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_KERNEL_OPS_H_
