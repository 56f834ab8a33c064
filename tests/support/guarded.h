// Arrays that end where a page begins that may not be touched: an access past the end is a crash, whatever the access masks away.
#ifndef RAFFIA_TESTS_SUPPORT_GUARDED_H_
#define RAFFIA_TESTS_SUPPORT_GUARDED_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <system_error>

namespace raffia::internal {

class GuardedFloats {
 public:
  explicit GuardedFloats(size_t count) : count_(count) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t used = (count * sizeof(float) + page - 1) / page * page;
    size_ = used + page;
    void* const pages = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    begin_ = static_cast<std::byte*>(pages);
    if (::mprotect(begin_ + used, page, PROT_NONE) != 0) throw std::system_error(errno, std::generic_category(), "mprotect");
    data_ = reinterpret_cast<float*>(begin_ + used) - count;
  }
  explicit GuardedFloats(std::span<const float> values) : GuardedFloats(values.size()) {
    std::copy(values.begin(), values.end(), data_);
  }
  ~GuardedFloats() { ::munmap(begin_, size_); }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;

  float* data() const { return data_; }
  size_t size() const { return count_; }
  std::span<float> values() const { return {data_, count_}; }

 private:
  size_t count_, size_;
  std::byte* begin_;
  float* data_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_GUARDED_H_
