// Which BLAS torch uses: the reference BLAS is 10 to 30 times slower than others, and it is what Debian installs by default.
#ifndef RAFFIA_BENCH_TORCH_BLAS_H_
#define RAFFIA_BENCH_TORCH_BLAS_H_

#include <string>

namespace raffia::internal::bench {

struct Blas {
  std::string path;      // of the library; empty: not found
  bool is_slow = false;  // the reference implementation
};
Blas blas_in_use();

// A one-line warning; empty if the BLAS is a fast one.
std::string blas_warning();

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_TORCH_BLAS_H_
