// Working memory of one op: one arena per worker, allocated before the parallel region and reused by the worker's tasks.
#ifndef RAFFIA_CORE_SCRATCH_H_
#define RAFFIA_CORE_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <new>

namespace raffia::internal {

class Scratch {
 public:
  static constexpr size_t kAlignment = 64;  // bytes: a cache line and the widest vector

  // Contents are undefined. They are NaN in builds with assertions or RAFFIA_POISON_SCRATCH, and with the environment variable
  // RAFFIA_POISON=1, so that a kernel that reads uninitialised scratch is noticed.
  Scratch(int workers, size_t floats_per_worker);

  float* of(int worker) const { return floats_.get() + static_cast<size_t>(worker) * distance_; }

 private:
  struct Free {
    void operator()(float* floats) const { ::operator delete (floats, std::align_val_t{kAlignment}); }
  };

  size_t distance_;  // floats from one worker's arena to the next
  std::unique_ptr<float, Free> floats_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_CORE_SCRATCH_H_
