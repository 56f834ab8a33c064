#include "io/formats/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_io(const fs::path& path, std::string_view action, int error) {
  throw IoError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(error)));
}

constexpr std::string_view kTemporaryMark = ".raffia-", kTemporaryEnd = ".tmp";

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// ".raffia-PID-N.tmp", ".OWNER.raffia-PID-N.tmp".
bool is_temporary_name(std::string_view name) {
  if (!name.starts_with('.') || !name.ends_with(kTemporaryEnd)) return false;
  name.remove_suffix(kTemporaryEnd.size());
  const size_t mark = name.rfind(kTemporaryMark);
  if (mark == std::string_view::npos) return false;
  const std::string_view numbers = name.substr(mark + kTemporaryMark.size());
  const size_t dash = numbers.find('-');
  return dash != std::string_view::npos && is_number(numbers.substr(0, dash)) && is_number(numbers.substr(dash + 1));
}

enum class Lock : uint8_t { held, held_by_others, unknown };  // unknown: the file system has no locks

Lock try_lock(int descriptor) {
  while (::flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EINTR) return errno == EWOULDBLOCK ? Lock::held_by_others : Lock::unknown;
  }
  return Lock::held;
}

bool is_there(int descriptor, const fs::path& path) {
  struct stat open = {}, named = {};
  return ::fstat(descriptor, &open) == 0 && ::lstat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

// A running process holds locks on its entries.
void remove_if_abandoned(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  std::error_code ignored;
  if (try_lock(descriptor) == Lock::held && is_there(descriptor, path)) fs::remove_all(path, ignored);
  ::close(descriptor);
}

void sweep(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(directory, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    if (is_temporary_name(entry->path().filename().string())) found.push_back(entry->path());
  }
  for (const fs::path& path : found) remove_if_abandoned(path);
}

// Once per process and directory: a directory of many files takes long to list, and leftovers can wait for the next process.
void sweep_once(const fs::path& directory) {
  static std::mutex mutex;
  static std::set<fs::path> swept;
  std::error_code error;
  fs::path known = fs::weakly_canonical(directory, error);
  if (error) return;
  {
    const std::lock_guard lock(mutex);
    if (!swept.insert(std::move(known)).second) return;
  }
  sweep(directory);
}

// The default permissions of a new file.
mode_t mode_of_new_files() {
  constexpr mode_t kAll = 0666;
  // Read from this file, since umask() can only be read by changing it, which affects other threads.
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kField = "Umask:";
    if (line.starts_with(kField)) return kAll & ~static_cast<mode_t>(std::strtoul(line.c_str() + kField.size(), nullptr, 8));
  }
  const mode_t mask = ::umask(0077);
  ::umask(mask);
  return kAll & ~mask;
}

// Where a file of this name is: what a link points to. Only a regular file can be replaced, never a device or a pipe.
fs::path place_of(const fs::path& target) {
  std::error_code none;
  const fs::file_status status = fs::status(target, none);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw IoError(fmt::format("{}: cannot write: not a regular file", target.string()));
  }
  if (!fs::is_symlink(fs::symlink_status(target, none))) return target;
  const fs::path place = fs::weakly_canonical(target, none);
  return none ? target : place;
}

}  // namespace

File::File(fs::path path, int flags, std::string_view action)
    : path_(std::move(path)), fd_(::open(path_.c_str(), flags | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw_io(path_, action, errno);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File File::open_to_read(const fs::path& path) {
  File file(path, O_RDONLY | O_NONBLOCK, "open");
  (void)file.size();  // refuses what is not a regular file
  return file;
}

struct stat File::status() const {
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) throw_io(path_, "read its size", errno);
  if (!S_ISREG(info.st_mode)) throw IoError(fmt::format("{}: cannot read: not a regular file", path_.string()));
  return info;
}

uint64_t File::size() const { return static_cast<uint64_t>(status().st_size); }

uint64_t File::size_on_disk() const {
  constexpr uint64_t kBlock = 512;  // unit of st_blocks on every file system
  return static_cast<uint64_t>(status().st_blocks) * kBlock;
}

void File::require_stored(std::string_view expected) const {
  // No file system compresses text or numbers to such a small part of their size.
  constexpr uint64_t kLarge = uint64_t{64} << 20, kMaxTimes = 64;
  const uint64_t total = size(), there = size_on_disk();
  if (total <= kLarge || there >= total / kMaxTimes) return;
  throw FormatError(fmt::format("{}: has {} bytes, of which {} are on disk: the rest is a hole, not {}", path_.string(), total,
                                there, expected));
}

FileVersion File::version() const {
  const struct stat info = status();
  return {static_cast<uint64_t>(info.st_size), info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
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
  // Some file systems cannot sync a directory and return EINVAL; nothing more can be done then.
  if (::fsync(fd_) != 0 && errno != EINVAL) throw_io(path_, "sync", errno);
}

TemporaryEntry::TemporaryEntry(const fs::path& directory, Kind kind, std::string_view owner)
    : TemporaryEntry(make(directory.empty() ? "." : directory, kind, owner)) {}

std::pair<fs::path, File> TemporaryEntry::make(const fs::path& directory, Kind kind, std::string_view owner) {
  static std::atomic<unsigned> made = 0;
  sweep_once(directory);
  while (true) {
    const std::string before = owner.empty() ? "" : fmt::format(".{}", owner);
    fs::path path = directory / fmt::format("{}{}{}-{}{}", before, kTemporaryMark, ::getpid(), made++, kTemporaryEnd);
    const bool is_directory = kind == Kind::directory;
    const int flags = is_directory ? O_RDONLY | O_DIRECTORY : O_WRONLY | O_CREAT | O_EXCL;
    const bool made_directory = is_directory && ::mkdir(path.c_str(), 0777) == 0;
    const int descriptor = made_directory || !is_directory ? ::open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, 0600) : -1;
    if (descriptor < 0) {
      // The name may be used by a file of a process with the same id: a crashed one, or one in another container.
      const bool is_taken = errno == EEXIST, is_swept = made_directory && errno == ENOENT;
      if (is_taken || is_swept) continue;
      throw_io(path, "create", errno);
    }
    File file(path, descriptor);
    // A process that sweeps holds the lock meanwhile.
    if (try_lock(descriptor) != Lock::held_by_others && is_there(descriptor, path)) return {std::move(path), std::move(file)};
  }
}

TemporaryEntry::~TemporaryEntry() {
  std::error_code ignored;
  if (!moved_) fs::remove_all(path_, ignored);
}

void TemporaryEntry::move_to(const fs::path& target) {
  if (::rename(path_.c_str(), target.c_str()) != 0) throw_io(target, fmt::format("move {} to it", path_.string()), errno);
  moved_ = true;
}

ReplacementFile::ReplacementFile(const fs::path& target)
    : target_(place_of(target)), aside_(target_.parent_path(), TemporaryEntry::Kind::file) {}

void ReplacementFile::commit() {
  // The new file gets the permissions of the file that it replaces.
  struct stat before = {};
  const mode_t mode = ::stat(target_.c_str(), &before) == 0 ? before.st_mode & 07777 : mode_of_new_files();
  (void)::fchmod(aside_.file().descriptor(), mode);  // some file systems have no permissions
  aside_.file().sync();
  // Closed only after it was moved: closing releases the lock, and another process could sweep it before.
  aside_.move_to(target_);
  sync_names(target_.has_parent_path() ? target_.parent_path() : ".");
}

void sync_names(const fs::path& directory) { File(directory, O_RDONLY | O_DIRECTORY, "open to sync").sync(); }

}  // namespace raffia::internal
