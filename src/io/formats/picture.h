// Images as PNG and JPEG files and, by file name extension, those of io/pnm.h. Input is not trusted.
#ifndef RAFFIA_IO_FORMATS_PICTURE_H_
#define RAFFIA_IO_FORMATS_PICTURE_H_

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "io/formats/elements.h"

namespace raffia::internal {

// Maximum width and height: images for models are far smaller, and a small file may claim any size.
inline constexpr int64_t kMaxPixelsOfSide = 4096;

// PNG or JPEG, by its first bytes: [channels, height, width], channels 1 (grey) or 3 (red, green, blue), from 0 (black) to 1.
// 16-bit values are reduced to 8 bits. Transparent pixels are an error. Throws FormatError; `where` names the file.
FloatArray parse_picture(std::string_view bytes, std::string_view where);

// Whether read_picture supports the file name extension: .png, .jpg, .jpeg, .pgm or .ppm, in any case, and with .gz or .xz after
// it.
bool is_picture(const std::filesystem::path& path);

// May be compressed (gz, xz). Also throws IoError.
FloatArray read_picture(const std::filesystem::path& path);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_PICTURE_H_
