// The version of the library. CMake reads it from this file.
#ifndef RAFFIA_VERSION_H_
#define RAFFIA_VERSION_H_

#include "raffia/api.h"
#include "raffia/cxx20.h"

#define RAFFIA_VERSION "0.1.0"

namespace raffia {
RAFFIA_API const char* version();  // of the linked library, which may be newer than this header
}  // namespace raffia

#endif  // RAFFIA_VERSION_H_
