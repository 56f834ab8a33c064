#include "io/formats/pnm.h"

#include <fmt/format.h>

#include <algorithm>

#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr uint32_t kMaxExtent = 1 << 24, kMaxValue = 65535;

bool is_pnm_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class PnmReader {
 public:
  PnmReader(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  FloatArray read() {
    const char kind = bytes_.size() >= 2 && bytes_[0] == 'P' ? bytes_[1] : '0';
    if (kind != '2' && kind != '3' && kind != '5' && kind != '6')
      refuse("is not an image, expected P2, P3, P5 or P6 (PGM or PPM) at the start");
    at_ = 2;
    const bool binary = kind >= '5';
    const uint64_t channels = kind == '2' || kind == '5' ? 1 : 3;
    const uint64_t width = number("the width", 1, kMaxExtent), height = number("the height", 1, kMaxExtent);
    max_ = number("the maximum value", 1, kMaxValue);
    if (at_ == bytes_.size() || !is_pnm_space(bytes_[at_])) refuse("white space is missing after the maximum value");
    ++at_;

    // 2^48 values at most, and each takes a byte or more.
    const uint64_t count = channels * width * height, left = bytes_.size() - at_;
    const uint64_t each = binary && max_ > 255 ? 2 : 1;
    if (binary ? left != count * each : left < count) {
      refuse(fmt::format("{} bytes follow, expected {}{} (an image of {} x {})", grouped(left), binary ? "" : "more than ",
                         grouped(count * each), width, height));
    }
    FloatArray image{.shape = {static_cast<int64_t>(channels), static_cast<int64_t>(height), static_cast<int64_t>(width)},
                     .values = std::vector<float>(count)};
    // Files have the channels of a pixel side by side.
    for (uint64_t pixel = 0; pixel < width * height; ++pixel) {
      for (uint64_t channel = 0; channel < channels; ++channel) {
        const uint32_t value = binary ? stored(each) : number("a value", 0, max_);
        image.values[channel * width * height + pixel] = static_cast<float>(value) / static_cast<float>(max_);
      }
    }
    if (!binary) {
      skip_space();
      if (at_ != bytes_.size()) refuse("unexpected bytes after the image");
    }
    return image;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw FormatError(fmt::format("{}: byte {}: {}", where_, grouped(at_), what));
  }

  // White space, and comments from # to the end of their line.
  void skip_space() {
    while (at_ < bytes_.size() && (is_pnm_space(bytes_[at_]) || bytes_[at_] == '#')) {
      at_ = bytes_[at_] == '#' ? std::min(bytes_.find_first_of("\n\r", at_), bytes_.size()) : at_ + 1;
    }
  }

  uint32_t number(std::string_view what, uint32_t min, uint32_t max) {
    skip_space();
    const size_t begin = at_;
    uint64_t value = 0;
    for (; at_ < bytes_.size() && is_decimal(bytes_[at_]) && value <= max; ++at_) {
      value = 10 * value + static_cast<uint64_t>(bytes_[at_] - '0');
    }
    if (at_ == begin || value < min || value > max) {
      at_ = begin;
      refuse(fmt::format("{} is missing or wrong, expected {} to {}", what, min, max));
    }
    return static_cast<uint32_t>(value);
  }

  uint32_t stored(uint64_t size) {  // the higher byte comes first
    uint32_t value = 0;
    for (uint64_t i = 0; i < size; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[at_ + i]);
    if (value > max_) refuse(fmt::format("a value is {}, expected 0 to {}", value, max_));
    at_ += size;
    return value;
  }

  std::string_view bytes_, where_;
  size_t at_ = 0;
  uint32_t max_ = 0;
};

}  // namespace

FloatArray parse_pnm(std::string_view bytes, std::string_view where) { return PnmReader(bytes, where).read(); }

FloatArray read_pnm(const std::filesystem::path& path) {
  return parse_pnm(read_data_file(path, kMaxBytesOfImage), path.string());
}

}  // namespace raffia::internal
