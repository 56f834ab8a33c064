// A file descriptor that is closed by the destructor.
#ifndef RAFFIA_TORCH_TRAIN_DESCRIPTOR_H_
#define RAFFIA_TORCH_TRAIN_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace raffia::internal::train {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DESCRIPTOR_H_
