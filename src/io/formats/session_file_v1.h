// Session files of format version 1, which raffia 0.1 wrote: everything has its place. They are only read.
#ifndef RAFFIA_IO_FORMATS_SESSION_FILE_V1_H_
#define RAFFIA_IO_FORMATS_SESSION_FILE_V1_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "io/formats/session_file.h"

namespace raffia::internal {

// Fills an image that has its position already. `bytes`: the whole file, whose frame is sound. Throws FormatError.
void read_session_v1(std::span<const std::byte> bytes, int64_t parts, std::string_view where, SessionImage& image);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_SESSION_FILE_V1_H_
