// Reads a file, a pipe or a terminal as the bytes arrive; decompresses gzip and xz.
#ifndef RAFFIA_CLI_SHARED_INPUT_H_
#define RAFFIA_CLI_SHARED_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "io/formats/compressed.h"

namespace raffia::internal::cli {

constexpr size_t kMaxBytesOfLine = size_t{1} << 28;

// All throw IoError, which names the input and the reason given by the system, and FormatError for damaged compressed data. "A
// signal" is one that Interrupts noted.
class Input {
 public:
  Input();                                            // stdin
  explicit Input(const std::filesystem::path& path);  // "-": stdin
  ~Input();
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  const std::string& name() const { return name_; }
  bool is_terminal() const;
  std::optional<uint64_t> size() const;  // remaining bytes of a regular file that is not compressed

  // Appends `bytes` bytes to `buffer`: fewer at the end of input, or if a signal came. False: end of input.
  bool read(std::string& buffer, size_t bytes);

  // The next line without its end; nullopt at the end of input, or if a signal came. The last line need not have an end.
  // A line of more than kMaxBytesOfLine bytes is an error.
  std::optional<std::string> line();

 private:
  enum class Came : uint8_t { bytes, end, signal };
  Came read_raw(std::string& buffer, size_t max);   // one call of read(2)
  Came read_some(std::string& buffer, size_t max);  // decompressed: at least one byte unless the input ends
  Came find_compression();
  bool is_compressed() const { return compression_.value_or(Compression::none) != Compression::none; }

  std::string name_;
  int descriptor_;
  bool ended_ = false;                      // the descriptor
  std::optional<Compression> compression_;  // known after the first bytes
  std::unique_ptr<Decompressor> decompressor_;
  bool all_out_ = false;  // of the decompressor
  std::string raw_;       // bytes read but not decompressed yet
  std::string ahead_;     // of line(): bytes read but not returned yet
};

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_INPUT_H_
