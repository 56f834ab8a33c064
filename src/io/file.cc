#include "io/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "raffia/error.h"

namespace raffia {
namespace {

[[noreturn]] void throw_io(const std::filesystem::path& path, std::string_view action, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error)));
}

std::filesystem::path free_name_beside(const std::filesystem::path& target) {
  static std::atomic<unsigned> files = 0;
  // A name may be taken by what a crashed process of the same number left behind.
  std::filesystem::path name;
  do name = target.parent_path() / fmt::format(".raffia-{}-{}.tmp", ::getpid(), files++);
  while (std::filesystem::exists(std::filesystem::symlink_status(name)));
  return name;
}

// Where a file of this name is: what a link points to. Only a regular file can be replaced, never a device or a pipe.
std::filesystem::path place_of(const std::filesystem::path& target) {
  std::error_code none;
  const std::filesystem::file_status status = std::filesystem::status(target, none);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw IoError(fmt::format("{}: cannot write: not a regular file", target.string()));
  }
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(target, none))) return target;
  const std::filesystem::path place = std::filesystem::weakly_canonical(target, none);
  return none ? target : place;
}

}  // namespace

File::File(std::filesystem::path path, int flags, std::string_view action)
    : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw_io(path_, action, errno);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open_to_read(const std::filesystem::path& path) {
  File file(path, O_RDONLY | O_NONBLOCK, "open");
  (void)file.size();  // refuses what is not a regular file
  return file;
}

uint64_t File::size() const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) throw_io(path_, "read its size", errno);
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("{}: cannot read: not a regular file", path_.string()));
  return static_cast<uint64_t>(info.st_size);
}

size_t File::read(std::span<std::byte> bytes) {
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

size_t File::read_at(uint64_t at, std::span<std::byte> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io(path_, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void File::write_at(uint64_t at, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io(path_, "write", errno);
    at += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_io(path_, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void File::sync() {
  // Some file systems cannot sync a directory and say EINVAL; what is left to do is theirs.
  if (::fsync(fd_) != 0 && errno != EINVAL) throw_io(path_, "sync", errno);
}

void File::close() {
  if (::close(std::exchange(fd_, -1)) != 0) throw_io(path_, "close", errno);
}

ReplacementFile::ReplacementFile(const std::filesystem::path& target)
    : target_(place_of(target)), aside_(free_name_beside(target_)), file_(aside_, O_WRONLY | O_CREAT | O_EXCL, "create") {
  // What replaces a file is open to those who could open the file.
  struct stat before = {};
  if (::stat(target_.c_str(), &before) == 0) (void)::fchmod(file_.descriptor(), before.st_mode & 07777);
}

ReplacementFile::~ReplacementFile() {
  if (!moved_) ::unlink(aside_.c_str());
}

void ReplacementFile::commit() {
  file_.sync();
  file_.close();
  if (::rename(aside_.c_str(), target_.c_str()) != 0) throw_io(target_, fmt::format("move {} to it", aside_.string()), errno);
  moved_ = true;
  // The new name is on disk only once the directory is.
  const std::filesystem::path directory = target_.has_parent_path() ? target_.parent_path() : ".";
  File(directory, O_RDONLY | O_DIRECTORY, "open to sync").sync();
}

}  // namespace raffia
