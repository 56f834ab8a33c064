#include "cli/shared/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "cli/shared/interrupt.h"
#include "raffia/error.h"

namespace raffia::internal::cli {
namespace {

constexpr size_t kAtOnce = size_t{1} << 16;

[[noreturn]] void throw_io(const std::string& name, const char* action, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", name, action, std::strerror(error)));
}

}  // namespace

Input::Input() : name_("stdin"), descriptor_(STDIN_FILENO) {}

Input::Input(const std::filesystem::path& path) : Input() {
  if (path == "-") return;
  name_ = path.string();
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw_io(name_, "open", errno);
}

Input::~Input() {
  if (descriptor_ > STDIN_FILENO) ::close(descriptor_);
}

bool Input::is_terminal() const { return ::isatty(descriptor_) == 1; }

std::optional<uint64_t> Input::size() const {
  struct stat info = {};
  if (::fstat(descriptor_, &info) != 0 || !S_ISREG(info.st_mode)) return {};
  const off_t at = ::lseek(descriptor_, 0, SEEK_CUR);
  if (at < 0 || at > info.st_size) return 0;
  std::array<char, kBytesThatTellCompression> first = {};
  const auto found = std::max<ssize_t>(::pread(descriptor_, first.data(), first.size(), at), 0);
  const Compression now = *compression_of(std::string_view(first.data(), static_cast<size_t>(found)), true);
  if (compression_.value_or(now) != Compression::none) return {};
  return static_cast<uint64_t>(info.st_size - at);
}

Input::Came Input::read_raw(std::string& buffer, size_t max) {
  if (ended_) return Came::end;
  if (!await_input(descriptor_)) return Came::signal;
  const size_t before = buffer.size();
  buffer.resize(before + max);
  const ssize_t n = ::read(descriptor_, buffer.data() + before, max);
  const int error = errno;
  buffer.resize(before + static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n > 0) return Came::bytes;
  if (n < 0) throw_io(name_, "read", error);
  ended_ = true;
  return Came::end;
}

// Waits for more bytes only if the first ones look like a compressed file: a user at a terminal types one line at a time.
Input::Came Input::find_compression() {
  while (!(compression_ = compression_of(raw_, ended_))) {
    if (read_raw(raw_, kAtOnce) == Came::signal) return Came::signal;
  }
  if (is_compressed()) decompressor_ = std::make_unique<Decompressor>(*compression_, name_);
  return Came::bytes;
}

Input::Came Input::read_some(std::string& buffer, size_t max) {
  if (!compression_ && find_compression() == Came::signal) return Came::signal;
  if (decompressor_ == nullptr) {
    if (raw_.empty()) return read_raw(buffer, max);
    buffer.append(raw_, 0, max);
    raw_.erase(0, max);
    return Came::bytes;
  }
  const size_t before = buffer.size();
  while (!all_out_) {
    if (raw_.empty() && read_raw(raw_, kAtOnce) == Came::signal) return Came::signal;
    std::string_view left = raw_;
    all_out_ = decompressor_->run(left, ended_, buffer, max);
    raw_.erase(0, raw_.size() - left.size());
    if (buffer.size() > before) return Came::bytes;
  }
  return Came::end;
}

bool Input::read(std::string& buffer, size_t bytes) {
  const size_t full = buffer.size() + bytes;
  Came came = Came::bytes;
  while (buffer.size() < full && came == Came::bytes) came = read_some(buffer, full - buffer.size());
  return came != Came::end;
}

std::optional<std::string> Input::line() {
  size_t searched = 0;
  while (true) {
    if (const size_t end = ahead_.find('\n', searched); end != std::string::npos) {
      std::string found = ahead_.substr(0, end);
      ahead_.erase(0, end + 1);
      if (found.ends_with('\r')) found.pop_back();
      return found;
    }
    searched = ahead_.size();
    if (searched > kMaxBytesOfLine) {
      throw FormatError(fmt::format("{}: a line has more than {} bytes, the maximum", name_, kMaxBytesOfLine));
    }
    const Came came = read_some(ahead_, kAtOnce);
    if (came == Came::signal || (came == Came::end && ahead_.empty())) return {};
    if (came == Came::end) return std::exchange(ahead_, {});
  }
}

}  // namespace raffia::internal::cli
