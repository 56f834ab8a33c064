// Wraps stb_image in one function: its names stay in one source file, which is compiled without warnings.
#ifndef RAFFIA_IO_FORMATS_PICTURE_DECODER_H_
#define RAFFIA_IO_FORMATS_PICTURE_DECODER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal {

struct DecodedPicture {
  int width = 0, height = 0;
  int channels = 0;             // 1: grey, 2: grey and alpha, 3: colour, 4: colour and alpha
  std::vector<uint8_t> pixels;  // [height, width, channels]
  std::string error;            // why there are no pixels; empty on success
};

// Memory is limited by `max_pixels` per side, whatever the file claims.
DecodedPicture decode_picture(std::string_view bytes, int max_pixels);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_PICTURE_DECODER_H_
