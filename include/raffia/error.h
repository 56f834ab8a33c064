// Errors of the library. Each message names the function or file, what was found and what was expected:
//   gated_attention: gate_logits has shape [2, 100, 4], expected [2, 128, 8] (batch and heads of k, length of k)
#ifndef RAFFIA_ERROR_H_
#define RAFFIA_ERROR_H_

#include <stdexcept>

#include "raffia/api.h"
#include "raffia/cxx20.h"

namespace raffia {

class RAFFIA_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A shape, element type or option that the called function does not accept.
class RAFFIA_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Invalid file contents: truncated, corrupt, or of an unsupported version.
class RAFFIA_API FormatError : public Error {
 public:
  using Error::Error;
};

// An error of the operating system: missing file, full disk, no permission.
class RAFFIA_API IoError : public Error {
 public:
  using Error::Error;
};

}  // namespace raffia

#endif  // RAFFIA_ERROR_H_
