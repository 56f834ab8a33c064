// Bytes of a file, a pipe or a terminal, as they come.
#ifndef RAFFIA_CLI_INPUT_H_
#define RAFFIA_CLI_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace raffia::cli {

// All throw IoError that names the input and the system's reason. A signal is one that Interrupts noted.
class Input {
 public:
  Input();                                            // stdin
  explicit Input(const std::filesystem::path& path);  // "-": stdin
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& name() const { return name_; }
  bool is_terminal() const;
  std::optional<uint64_t> size() const;  // what is left of a regular file

  // Appends `bytes` bytes to `buffer`: fewer at the end, and where a signal came. False: that was the end.
  bool read(std::string& buffer, size_t bytes);

  // The next line without its end; nothing at the end of the input, and where a signal came. A last line without an end counts.
  std::optional<std::string> line();

 private:
  enum class Came : uint8_t { bytes, end, signal };
  Came read_some(std::string& buffer, size_t most);  // one call of read(2)

  std::string name_;
  int descriptor_;
  bool ended_ = false;
  std::string ahead_;  // of line(): bytes after what it returned
};

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_INPUT_H_
