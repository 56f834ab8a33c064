// Images of a state, as docs/state-format.md describes them. Bytes that come in are not trusted: sizes are checked against the
// bytes there are before anything is allocated.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "core/state_size.h"
#include "raffia/error.h"
#include "raffia/state.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace raffia {
namespace {

constexpr std::string_view kMagic = "RAFSTATE";
constexpr uint32_t kFormatVersion = 1;

// Offsets of the fields of the header, all little-endian.
constexpr size_t kVersionAt = 8;       // u32
constexpr size_t kHeaderSizeAt = 12;   // u32
constexpr size_t kBatchAt = 16;        // i64
constexpr size_t kHeadsAt = 24;        // i64
constexpr size_t kFeaturesAt = 32;     // i64
constexpr size_t kValueDimAt = 40;     // i64
constexpr size_t kPayloadSizeAt = 48;  // u64
constexpr size_t kChecksumAt = 56;     // u64
constexpr size_t kHeaderSize = 64;

using Bytes = std::span<const std::byte>;

template <typename Word>
void put(std::span<std::byte> bytes, size_t at, Word word) {
  for (size_t i = 0; i < sizeof(Word); ++i) bytes[at + i] = static_cast<std::byte>(word >> (8 * i));
}

template <typename Word>
Word get(Bytes bytes, size_t at) {
  Word word = 0;
  for (size_t i = 0; i < sizeof(Word); ++i) word |= static_cast<Word>(std::to_integer<Word>(bytes[at + i]) << (8 * i));
  return word;
}

int64_t get_size(Bytes bytes, size_t at) { return static_cast<int64_t>(get<uint64_t>(bytes, at)); }

// Of all bytes but the checksum's own.
uint64_t checksum_of(Bytes header, Bytes payload) {
  XXH3_state_t hash;
  XXH3_64bits_reset(&hash);
  XXH3_64bits_update(&hash, header.data(), kChecksumAt);
  XXH3_64bits_update(&hash, payload.data(), payload.size());
  return XXH3_64bits_digest(&hash);
}

// `where` names the bytes in messages, `total` counts them, header included.
StateShape parse_header(Bytes header, uint64_t total, std::string_view where) {
  if (header.size() < kHeaderSize) {
    throw FormatError(
        fmt::format("{}: {} bytes, expected a state header of {}: truncated, or not a state", where, header.size(), kHeaderSize));
  }
  if (std::memcmp(header.data(), kMagic.data(), kMagic.size()) != 0) {
    throw FormatError(fmt::format("{}: does not begin with {}: not a state", where, kMagic));
  }
  if (const auto version = get<uint32_t>(header, kVersionAt); version != kFormatVersion) {
    throw FormatError(
        fmt::format("{}: state format version {} at byte {}, expected {}", where, version, kVersionAt, kFormatVersion));
  }
  if (const auto size = get<uint32_t>(header, kHeaderSizeAt); size != kHeaderSize) {
    throw FormatError(fmt::format("{}: header size {} at byte {}, expected {}", where, size, kHeaderSizeAt, kHeaderSize));
  }
  const StateShape shape{get_size(header, kBatchAt), get_size(header, kHeadsAt), get_size(header, kFeaturesAt),
                         get_size(header, kValueDimAt)};
  const std::optional<int64_t> bytes = bytes_of(shape);
  if (!bytes) {
    throw FormatError(fmt::format("{}: batch {}, heads {}, features {}, value_dim {} at byte {} are not the shape of a state",
                                  where, shape.batch, shape.heads, shape.features, shape.value_dim, kBatchAt));
  }
  if (const auto payload = get<uint64_t>(header, kPayloadSizeAt); payload != static_cast<uint64_t>(*bytes)) {
    throw FormatError(
        fmt::format("{}: payload of {} bytes at byte {}, expected {} (from the shape)", where, payload, kPayloadSizeAt, *bytes));
  }
  if (total - kHeaderSize != static_cast<uint64_t>(*bytes)) {
    throw FormatError(fmt::format("{}: {} bytes, expected {} (header and payload): {}", where, total,
                                  kHeaderSize + static_cast<uint64_t>(*bytes),
                                  total - kHeaderSize < static_cast<uint64_t>(*bytes) ? "truncated" : "bytes follow the state"));
  }
  return shape;
}

void require_checksum(Bytes header, Bytes payload, std::string_view where) {
  const uint64_t expected = get<uint64_t>(header, kChecksumAt);
  if (const uint64_t found = checksum_of(header, payload); found != expected) {
    throw FormatError(fmt::format("{}: checksum {:016x}, expected {:016x} (at byte {}): the state is corrupt", where, found,
                                  expected, kChecksumAt));
  }
}

// Between floats in memory and little-endian bytes: its own inverse.
void swap_if_big_endian(std::span<std::byte> bytes) {
  if constexpr (std::endian::native == std::endian::big) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i),
                   bytes.begin() + static_cast<std::ptrdiff_t>(i + sizeof(float)));
    }
  }
}

[[noreturn]] void throw_io(const std::filesystem::path& path, std::string_view action, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error)));
}

class File {
 public:
  File(std::filesystem::path path, int flags, std::string_view action)
      : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) throw_io(path_, action, errno);
  }
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  uint64_t size() const {
    struct stat info = {};
    if (::fstat(fd_, &info) != 0) throw_io(path_, "read its size", errno);
    if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("{}: cannot read: not a regular file", path_.string()));
    return static_cast<uint64_t>(info.st_size);
  }

  // As many bytes as there are, at most `bytes.size()`.
  size_t read(std::span<std::byte> bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::read(fd_, bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_io(path_, "read", errno);
      if (n == 0) break;
      done += static_cast<size_t>(n);
    }
    return done;
  }

  void write(Bytes bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_io(path_, "write", errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }

  void sync() {
    // Some file systems cannot sync a directory and say EINVAL; what is left to do is theirs.
    if (::fsync(fd_) != 0 && errno != EINVAL) throw_io(path_, "sync", errno);
  }

  void close() {
    if (::close(std::exchange(fd_, -1)) != 0) throw_io(path_, "close", errno);
  }

 private:
  std::filesystem::path path_;
  int fd_;
};

// A file that is removed unless it is moved to its place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target) : target_(target) {
    // A name may be taken by what a crashed process of the same number left behind.
    do path_ = name_beside(target);
    while (std::filesystem::exists(std::filesystem::symlink_status(path_)));
    File(path_, O_WRONLY | O_CREAT | O_EXCL, "create").close();
  }
  ~TemporaryFile() {
    if (!moved_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(Bytes bytes) {
    File file(path_, O_WRONLY, "open");
    file.write(bytes);
    file.sync();
    file.close();
  }

  void move_to_target() {
    if (::rename(path_.c_str(), target_.c_str()) != 0) throw_io(target_, fmt::format("move {} to it", path_.string()), errno);
    moved_ = true;
  }

 private:
  static std::filesystem::path name_beside(const std::filesystem::path& target) {
    static std::atomic<unsigned> saves = 0;
    return target.parent_path() / fmt::format(".raffia-{}-{}.tmp", ::getpid(), saves++);
  }

  std::filesystem::path target_, path_;
  bool moved_ = false;
};

}  // namespace

std::vector<std::byte> State::to_bytes() const {
  std::vector<std::byte> image(kHeaderSize + size_bytes());
  const std::span header = std::span(image).first(kHeaderSize);
  const std::span payload = std::span(image).subspan(kHeaderSize);
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  put(header, kVersionAt, kFormatVersion);
  put(header, kHeaderSizeAt, static_cast<uint32_t>(kHeaderSize));
  put(header, kBatchAt, static_cast<uint64_t>(shape_.batch));
  put(header, kHeadsAt, static_cast<uint64_t>(shape_.heads));
  put(header, kFeaturesAt, static_cast<uint64_t>(shape_.features));
  put(header, kValueDimAt, static_cast<uint64_t>(shape_.value_dim));
  put(header, kPayloadSizeAt, static_cast<uint64_t>(payload.size()));
  if (!payload.empty()) std::memcpy(payload.data(), data_.data(), payload.size());
  swap_if_big_endian(payload);
  put(header, kChecksumAt, checksum_of(header, payload));
  return image;
}

State State::from_bytes(std::span<const std::byte> bytes) {
  constexpr std::string_view kWhere = "State::from_bytes";
  const StateShape shape = parse_header(bytes.first(std::min(bytes.size(), kHeaderSize)), bytes.size(), kWhere);
  const Bytes payload = bytes.subspan(kHeaderSize);
  require_checksum(bytes.first(kHeaderSize), payload, kWhere);
  State state(shape);
  if (!payload.empty()) std::memcpy(state.data_.data(), payload.data(), payload.size());
  swap_if_big_endian(std::as_writable_bytes(std::span(state.data_)));
  return state;
}

void State::save(const std::filesystem::path& path) const {
  TemporaryFile temporary(path);
  temporary.write(to_bytes());
  temporary.move_to_target();
  // The new name is on disk only once the directory is.
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  File(directory, O_RDONLY | O_DIRECTORY, "open to sync").sync();
}

State State::load(const std::filesystem::path& path) {
  File file(path, O_RDONLY | O_NONBLOCK, "open");  // a pipe without a writer must not block before it is refused
  const uint64_t total = file.size();
  const std::string where = path.string();
  std::vector<std::byte> header(kHeaderSize);
  header.resize(file.read(header));
  State state(parse_header(header, total, where));
  const std::span<std::byte> payload = std::as_writable_bytes(std::span(state.data_));
  if (const size_t found = file.read(payload); found != payload.size()) {
    throw FormatError(
        fmt::format("{}: ends at byte {}, expected {}: it shrank while it was read", where, kHeaderSize + found, total));
  }
  require_checksum(header, payload, where);
  swap_if_big_endian(payload);
  return state;
}

}  // namespace raffia
