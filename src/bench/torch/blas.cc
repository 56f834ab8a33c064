#include "bench/torch/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

namespace raffia::internal::bench {

Blas blas_in_use() {
  for (const char* symbol : {"sgemm_", "cblas_sgemm"}) {
    Dl_info info = {};
    void* function = ::dlsym(RTLD_DEFAULT, symbol);
    if (function == nullptr || ::dladdr(function, &info) == 0 || info.dli_fname == nullptr) continue;
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(info.dli_fname, error);
    Blas blas{.path = error ? info.dli_fname : real.string()};
    constexpr const char* kFast[] = {"openblas", "mkl", "blis", "atlas", "armpl", "torch"};
    blas.is_slow = std::none_of(std::begin(kFast), std::end(kFast),
                                [&](const char* name) { return blas.path.find(name) != std::string::npos; });
    return blas;
  }
  return {};
}

std::string blas_warning() {
  const Blas blas = blas_in_use();
  if (!blas.is_slow) return "";
  return fmt::format("warning: torch multiplies matrices with {}, the slow reference BLAS: apt-get install libopenblas0-openmp",
                     blas.path);
}

}  // namespace raffia::internal::bench
