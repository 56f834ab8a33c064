// Images as PNG and JPEG files, and by the endings of their names those of io/pnm.h too. Bytes that come in are not trusted.
#ifndef RAFFIA_IO_PICTURE_H_
#define RAFFIA_IO_PICTURE_H_

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "io/elements.h"

namespace raffia {

// Of a side: images that models read are far smaller, and a small file may claim any size.
inline constexpr int64_t kMostPixelsOfSide = 4096;

// PNG or JPEG, as its first bytes say: [channels, height, width], channels 1 (grey) or 3 (red, green, blue), from 0 (black) to 1.
// Values of 16 bits are read with 8. Transparent pixels are refused. Throws FormatError; `where` names the file.
FloatArray parse_picture(std::string_view bytes, std::string_view where);

// Whether read_picture knows the ending of the name: .png, .jpg, .jpeg, .pgm or .ppm, in small or capital letters.
bool is_picture(const std::filesystem::path& path);

// Throws IoError, too.
FloatArray read_picture(const std::filesystem::path& path);

}  // namespace raffia

#endif  // RAFFIA_IO_PICTURE_H_
