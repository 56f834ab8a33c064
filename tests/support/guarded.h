// Arrays that end where a page begins that may not be touched: an access past the end is a crash, whatever the access masks away.
#ifndef RAFFIA_TESTS_SUPPORT_GUARDED_H_
#define RAFFIA_TESTS_SUPPORT_GUARDED_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <system_error>

namespace raffia::internal {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t count) : count_(count) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t used = (count + page - 1) / page * page;
    size_ = used + page;
    void* const pages = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    begin_ = static_cast<std::byte*>(pages);
    if (::mprotect(begin_ + used, page, PROT_NONE) != 0) throw std::system_error(errno, std::generic_category(), "mprotect");
    data_ = begin_ + used - count;
  }
  ~GuardedBytes() { ::munmap(begin_, size_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  size_t count_, size_;
  std::byte *begin_, *data_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_GUARDED_H_
