// Bytes of a file, a pipe or a terminal, as they come; decompressed if they are gzip or xz.
#ifndef RAFFIA_CLI_INPUT_H_
#define RAFFIA_CLI_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "io/compressed.h"

namespace raffia::cli {

constexpr size_t kMostBytesOfLine = size_t{1} << 28;

// All throw IoError that names the input and the system's reason, and FormatError for damaged compressed data. A signal is one
// that Interrupts noted.
class Input {
 public:
  Input();                                            // stdin
  explicit Input(const std::filesystem::path& path);  // "-": stdin
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& name() const { return name_; }
  bool is_terminal() const;
  std::optional<uint64_t> size() const;  // what is left of a regular file that is not compressed

  // Appends `bytes` bytes to `buffer`: fewer at the end, and where a signal came. False: that was the end.
  bool read(std::string& buffer, size_t bytes);

  // The next line without its end; nothing at the end of the input, and where a signal came. A last line without an end counts.
  // A line of more than kMostBytesOfLine is refused.
  std::optional<std::string> line();

 private:
  enum class Came : uint8_t { bytes, end, signal };
  Came read_raw(std::string& buffer, size_t most);   // one call of read(2)
  Came read_some(std::string& buffer, size_t most);  // what it decompresses to: at least a byte unless it ends
  Came find_compression();
  bool is_compressed() const { return compression_.value_or(Compression::none) != Compression::none; }

  std::string name_;
  int descriptor_;
  bool ended_ = false;                      // the descriptor
  std::optional<Compression> compression_;  // once the first bytes have told it
  std::unique_ptr<Decompressor> decompressor_;
  bool all_out_ = false;  // of the decompressor
  std::string raw_;       // bytes that were read and not passed on yet
  std::string ahead_;     // of line(): bytes after what it returned
};

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_INPUT_H_
