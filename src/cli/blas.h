// Which BLAS is behind torch: the reference one is 10 to 30 times slower than others, and it is what Debian installs by itself.
#ifndef RAFFIA_CLI_BLAS_H_
#define RAFFIA_CLI_BLAS_H_

#include <string>

namespace raffia::cli {

struct Blas {
  std::string path;      // of the library; empty: not found
  bool is_slow = false;  // the reference implementation
};
Blas blas_in_use();

// One line for people; empty where all is well.
std::string blas_warning();

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_BLAS_H_
