// Only one process at a time writes a run. The lock is released when the process ends, even if it is killed.
#ifndef RAFFIA_TORCH_TRAIN_RUN_LOCK_H_
#define RAFFIA_TORCH_TRAIN_RUN_LOCK_H_

#include <filesystem>

namespace raffia::internal::train {

class RunLock {
 public:
  explicit RunLock(const std::filesystem::path& directory);  // created if needed; throws IoError if another process has the lock
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_RUN_LOCK_H_
