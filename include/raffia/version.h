// The one place that holds the version; CMake reads it from here.
#ifndef RAFFIA_VERSION_H_
#define RAFFIA_VERSION_H_

#define RAFFIA_VERSION "0.1.0"

namespace raffia {
const char* version();  // of the library that is linked, which may be newer than the header
}  // namespace raffia

#endif  // RAFFIA_VERSION_H_
