// Session files (docs/state-format.md): everything that a model needs to continue a text. Input is not trusted.
#ifndef RAFFIA_IO_FORMATS_SESSION_FILE_H_
#define RAFFIA_IO_FORMATS_SESSION_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "raffia/memory.h"
#include "raffia/session.h"

namespace raffia::internal {

struct SessionImage {
  struct Part {
    Memory past;
    std::vector<float> tail;  // of the short convolution
    bool operator==(const Part&) const = default;
  };

  uint64_t fingerprint = 0;  // of the model
  int64_t position = 0;
  uint64_t draws = 0;
  SamplingOptions sampling = {};
  std::vector<int32_t> recent;  // tokens for the repetition penalty, oldest first
  std::vector<float> logits;    // [vocabulary]; empty before the first token
  std::vector<Part> parts;      // of the attentions, in order
  bool operator==(const SessionImage&) const = default;
};

constexpr int64_t kMaxSessionParts = 1 << 12;

// Format version 2: a description in JSON, which names sampling options and blocks, and then the blocks. session_from_bytes also
// reads version 1.
std::vector<std::byte> to_bytes(const SessionImage& image);
SessionImage session_from_bytes(std::span<const std::byte> bytes, std::string_view where);  // throws FormatError

// A named piece of a file of version 2.
struct SessionBlock {
  std::string name;
  std::span<const std::byte> bytes;
};
// The blocks of a file with a header of version 2, sorted by name. Throws FormatError; the checksum is not checked.
std::vector<SessionBlock> session_blocks(std::span<const std::byte> bytes, std::string_view where);

// The header of a file, read before its payload.
struct SessionHeader {
  uint64_t fingerprint = 0;
  int64_t position = 0;
};
// The whole file. `max_bytes` returns the maximum size for a header, header included; it may throw. Nothing is allocated before
// that, nor for a large sparse file (a few bytes on disk, the rest a hole). Throws IoError and FormatError.
std::vector<std::byte> read_session_file(const std::filesystem::path& path,
                                         const std::function<uint64_t(const SessionHeader&)>& max_bytes = {});

}  // namespace raffia::internal

#endif  // RAFFIA_IO_FORMATS_SESSION_FILE_H_
