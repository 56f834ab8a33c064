// Bytes that a parser reads in parts, from memory or from a file, without loading the rest.
#ifndef RAFFIA_IO_FORMATS_BYTE_SOURCE_H_
#define RAFFIA_IO_FORMATS_BYTE_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "core/sibling_api.h"
#include "io/formats/elements.h"
#include "io/formats/file.h"

namespace raffia::internal {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }  // for messages
  uint64_t size() const { return size_; }

  // Bytes [at, at + bytes.size()), which lie within size(). Safe to call from several threads.
  virtual void read(uint64_t at, std::span<std::byte> bytes) const = 0;

 protected:
  ByteSource(std::string name, uint64_t size) : name_(std::move(name)), size_(size) {}

 private:
  std::string name_;
  uint64_t size_;
};

class MemorySource : public ByteSource {
 public:
  MemorySource(std::string name, std::span<const std::byte> bytes) : ByteSource(std::move(name), bytes.size()), bytes_(bytes) {}
  void read(uint64_t at, std::span<std::byte> bytes) const override;

 private:
  std::span<const std::byte> bytes_;
};

// A regular file. Throws IoError, and FormatError if it has shrunk since it was opened.
class FileSource : public ByteSource {
 public:
  explicit FileSource(const std::filesystem::path& path);
  void read(uint64_t at, std::span<std::byte> bytes) const override;

 private:
  FileSource(const std::filesystem::path& path, File file);

  File file_;
};

// values.size() elements from byte `at`, converted piece by piece.
RAFFIA_SIBLING_API void read_floats(const ByteSource& source, uint64_t at, ElementType type, std::span<float> values);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_BYTE_SOURCE_H_
