// Images as PGM (grey) and PPM (colour) files: P2 and P3 are text, P5 and P6 binary. Input is not trusted.
#ifndef RAFFIA_IO_FORMATS_PNM_H_
#define RAFFIA_IO_FORMATS_PNM_H_

#include <filesystem>
#include <string_view>

#include "io/formats/elements.h"

namespace raffia::internal {

// [channels, height, width], channels 1 or 3, from 0 (black) to 1. Throws FormatError that names the byte; `where` names the
// file.
FloatArray parse_pnm(std::string_view bytes, std::string_view where);
FloatArray read_pnm(const std::filesystem::path& path);  // may be compressed (gz, xz); also throws IoError

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_PNM_H_
