#include "torch/train/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "raffia/error.h"

namespace raffia::internal::train {

RunLock::RunLock(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(fmt::format("{}: cannot create: {}", directory.string(), error.message()));
  fd_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) throw IoError(fmt::format("{}: cannot open: {}", directory.string(), std::strerror(errno)));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const bool is_taken = errno == EWOULDBLOCK;
    const std::string reason = is_taken ? "another process is training in this directory" : std::strerror(errno);
    ::close(fd_);
    throw IoError(fmt::format("{}: cannot lock: {}", directory.string(), reason));
  }
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace raffia::internal::train
