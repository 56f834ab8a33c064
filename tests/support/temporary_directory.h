// A directory of its own for a test, removed at the end of its life.
#ifndef RAFFIA_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
#define RAFFIA_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace raffia::internal {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(std::string_view name)
      : path_(std::filesystem::temp_directory_path() / (std::string(name) + "." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // A file of these bytes in it.
  std::filesystem::path write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_TEMPORARY_DIRECTORY_H_
