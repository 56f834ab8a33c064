// Files of named tensors (.safetensors): 8 bytes of header size, a JSON header, one buffer that the tensors fill without gaps.
// Input is not trusted: every offset and shape is checked when the file is opened, before anything is allocated.
#ifndef RAFFIA_IO_FORMATS_SAFETENSORS_H_
#define RAFFIA_IO_FORMATS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/sibling_api.h"
#include "io/formats/byte_source.h"
#include "io/formats/elements.h"
#include "io/formats/file.h"

namespace raffia::internal {

// Reads the header of a file, and its tensors one by one.
class RAFFIA_SIBLING_API Safetensors {
 public:
  struct Tensor {
    std::string name;
    std::string dtype;  // as the file names it: "F32"
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0;  // bytes of the file
  };

  // Reads and checks the header. Throws IoError or FormatError.
  static Safetensors open(const std::filesystem::path& path);
  // `bytes` must outlive the result; `where` names them in messages.
  static Safetensors over(std::span<const std::byte> bytes, std::string_view where);

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  uint64_t data_begin() const { return data_begin_; }  // the first byte after the header

  const Tensor* find(std::string_view name) const;  // null: there is none
  const Tensor& at(std::string_view name) const;    // throws FormatError, which lists the existing names

  void require_checksum() const;  // of the data

  FloatArray read(std::string_view name) const;  // of dtype F16, BF16, F32 or F64; throws FormatError for others
  std::vector<std::byte> read_bytes(std::string_view name) const;
  // values.size() elements of a tensor of such a type from element `first` on, which lie within it.
  void read_part(const Tensor& tensor, uint64_t first, std::span<float> values) const;
  void read_bytes_part(const Tensor& tensor, uint64_t first, std::span<std::byte> bytes) const;  // likewise, of bytes

 private:
  explicit Safetensors(std::unique_ptr<const ByteSource> source);

  std::unique_ptr<const ByteSource> source_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  uint64_t data_begin_ = 0;
};

// Metadata: XXH3 of the data as 16 hexadecimal digits. Files of other programs have none.
constexpr const char* kChecksumKey = "xxh3";
RAFFIA_SIBLING_API uint64_t data_checksum(std::span<const std::byte> data);
// Throws FormatError if the metadata have a different checksum. `of_data` is called only if they have one.
RAFFIA_SIBLING_API void require_checksum(const std::map<std::string, std::string>& metadata,
                                         const std::function<uint64_t()>& of_data, std::string_view where);
RAFFIA_SIBLING_API std::string hexadecimal(uint64_t checksum);

struct TensorHead {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
};

// Writes a file in parts, so that no whole tensor has to be in memory. The file appears when it is complete.
//
//   SafetensorsWriter file(path, heads);
//   for (...) file.write(bytes);  // of the tensors in the order of their heads, little-endian, row-major
//   file.commit();
// One entry is added to the metadata, kChecksumKey: of all bytes after the header.
class RAFFIA_SIBLING_API SafetensorsWriter {
 public:
  // Throws InvalidArgument for duplicate names and sizes that overflow, or IoError.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHead> heads,
                    const std::map<std::string, std::string>& metadata = {});

  void write(std::span<const std::byte> bytes);  // appends
  void commit();                                 // throws InvalidArgument if bytes are missing
  ~SafetensorsWriter();
  uint64_t size() const { return size_; }  // of the whole file

 private:
  struct Hash;

  ReplacementFile file_;
  uint64_t size_ = 0, written_ = 0, data_at_ = 0, checksum_at_ = 0;
  std::unique_ptr<Hash> hash_;
};

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // little-endian, row-major
};

// The bytes of such a file. Throws InvalidArgument if the bytes of a tensor do not match its type and shape.
RAFFIA_SIBLING_API std::vector<std::byte> safetensors_image(std::span<const TensorToWrite> tensors,
                                                            const std::map<std::string, std::string>& metadata = {});

// Replaces the file atomically. Throws InvalidArgument if the bytes of a tensor do not match its type and shape, or IoError.
RAFFIA_SIBLING_API void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                                          const std::map<std::string, std::string>& metadata = {});

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_SAFETENSORS_H_
