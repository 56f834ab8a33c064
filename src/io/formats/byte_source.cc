#include "io/formats/byte_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "raffia/error.h"

namespace raffia::internal {
namespace {

constexpr size_t kPieceElements = 1 << 18;

}  // namespace

void MemorySource::read(uint64_t at, std::span<std::byte> bytes) const {
  std::ranges::copy(bytes_.subspan(at, bytes.size()), bytes.begin());
}

FileSource::FileSource(const std::filesystem::path& path) : FileSource(path, File::open_to_read(path)) {}

FileSource::FileSource(const std::filesystem::path& path, File file)
    : ByteSource(path.string(), file.size()), file_(std::move(file)) {
  file_.require_stored("tensors");
}

void FileSource::read(uint64_t at, std::span<std::byte> bytes) const {
  if (const size_t found = file_.read_at(at, bytes); found != bytes.size()) {
    throw FormatError(fmt::format("{}: ends at byte {}, expected {}: it shrank while it was read", name(), at + found, size()));
  }
}

void read_floats(const ByteSource& source, uint64_t at, ElementType type, std::span<float> values) {
  std::vector<std::byte> piece(std::min(values.size(), kPieceElements) * size_of(type));
  while (!values.empty()) {
    const size_t count = std::min(values.size(), kPieceElements);
    const std::span<std::byte> bytes = std::span(piece).first(count * size_of(type));
    source.read(at, bytes);
    to_floats(bytes, type, values.first(count));
    at += bytes.size();
    values = values.subspan(count);
  }
}

}  // namespace raffia::internal
