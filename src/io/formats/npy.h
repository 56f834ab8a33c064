// Arrays of NumPy (.npy), format versions 1 to 3. Input is not trusted: sizes are checked against the length of the input before
// anything is allocated.
#ifndef RAFFIA_IO_FORMATS_NPY_H_
#define RAFFIA_IO_FORMATS_NPY_H_

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/formats/elements.h"

namespace raffia::internal {

// Elements <f2, <f4 or <f8, of any rank, in C or Fortran order. `where` names the bytes in messages. Throws FormatError.
FloatArray parse_npy(std::span<const std::byte> bytes, std::string_view where);
FloatArray read_npy(const std::filesystem::path& path);  // also throws IoError

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_NPY_H_
