#include "io/formats/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/check.h"
#include "core/message.h"
#include "io/formats/file.h"
#include "raffia/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace raffia::internal {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kPrefix = 8;                   // the size of the header
constexpr uint64_t kLongestHeader = 100'000'000;  // the limit of the format
constexpr size_t kHighestRank = 64;               // far above any tensor of a model
constexpr std::string_view kMetadata = "__metadata__";

struct Dtype {
  std::string_view name;
  uint64_t size;
  std::optional<ElementType> type = {};  // of those that read() converts
};

constexpr Dtype kDtypes[] = {{"F32", 4, ElementType::f32},
                             {"F16", 2, ElementType::f16},
                             {"BF16", 2, ElementType::bf16},
                             {"F64", 8, ElementType::f64},
                             {"I64", 8},
                             {"I32", 4},
                             {"I16", 2},
                             {"I8", 1},
                             {"U64", 8},
                             {"U32", 4},
                             {"U16", 2},
                             {"U8", 1},
                             {"BOOL", 1},
                             {"F8_E4M3", 1},
                             {"F8_E5M2", 1}};

const Dtype* find_dtype(std::string_view name) {
  const auto* found = std::find_if(std::begin(kDtypes), std::end(kDtypes), [name](const Dtype& d) { return d.name == name; });
  return found == std::end(kDtypes) ? nullptr : found;
}

// A tensor as the header states it. Offsets count from the end of the header.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape, offsets;
};

// Reads the header while it is parsed: unexpected values are errors at once, no tree is built, and duplicate keys are noticed
// (a tree would keep the last one).
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string_view where) : where_(where) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool number_integer(number_integer_t value) override { return refuse(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return refuse(text); }
  bool binary(binary_t&) override { return refuse("bytes"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::numbers) return refuse(fmt::format("{}", value));
    if (numbers().size() == kHighestRank) fail(fmt::format("more than {} numbers", kHighestRank), "a shape or two offsets");
    numbers().push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      if (!metadata.emplace(key_, value).second) fail(fmt::format("key \"{}\" of {} twice", printable(key_), kMetadata), "once");
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return refuse(fmt::format("\"{}\"", printable(value)));
    set(entries.back().dtype, value);
    return true;
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::start:
        place_ = Place::file;
        return true;
      case Place::file:
        if (key_ == kMetadata) {
          if (std::exchange(has_metadata_, true)) fail(fmt::format("{} twice", kMetadata), "once");
          place_ = Place::metadata;
        } else {
          entries.push_back({.name = key_});
          place_ = Place::tensor;
        }
        return true;
      default:
        return refuse("an object");
    }
  }

  bool key(string_t& name) override {
    key_ = name;
    if (place_ == Place::tensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      fail(fmt::format("key \"{}\" of {}", printable(key_), here()), "dtype, shape or data_offsets");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      const Entry& entry = entries.back();
      if (!entry.dtype || !entry.shape || !entry.offsets)
        fail(here() + " without one of its keys", "dtype, shape and data_offsets");
    }
    place_ = place_ == Place::file ? Place::end : Place::file;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::tensor || key_ == "dtype") return refuse("an array");
    set(key_ == "shape" ? entries.back().shape : entries.back().offsets, std::vector<uint64_t>());
    place_ = Place::numbers;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    throw FormatError(
        fmt::format("{}: the header is not JSON near byte {}: {}", where_, kPrefix + position, without_origin(error.what())));
  }

  static std::string printable(std::string_view text) {
    constexpr size_t kLongest = 80;
    std::string result;
    for (const char c : text.substr(0, kLongest)) result += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    return text.size() > kLongest ? result + "..." : result;
  }

 private:
  enum class Place : uint8_t { start, file, metadata, tensor, numbers, end };

  [[noreturn]] void fail(std::string_view found, std::string_view expected) const {
    throw FormatError(fmt::format("{}: header: {}, expected {}", where_, found, expected));
  }

  // A value of a type that is not allowed here.
  [[noreturn]] bool refuse(std::string_view found) const {
    switch (place_) {
      case Place::start:
      case Place::end:
        fail(found, "an object of tensors");
      case Place::file:
        fail(fmt::format("{} as value of \"{}\"", found, printable(key_)), "an object");
      case Place::metadata:
        fail(fmt::format("{} as value of \"{}\" of {}", found, printable(key_), kMetadata), "a string");
      case Place::tensor:
        fail(fmt::format("{} as {} of {}", found, key_, here()), key_ == "dtype" ? "a string" : "an array");
      case Place::numbers:
        fail(fmt::format("{} in {} of {}", found, key_, here()), "integers of 0 or more");
    }
    fail(found, "nothing");
  }

  std::string here() const { return fmt::format("tensor \"{}\"", printable(entries.back().name)); }

  std::vector<uint64_t>& numbers() { return key_ == "shape" ? *entries.back().shape : *entries.back().offsets; }

  template <typename Value>
  void set(std::optional<Value>& target, Value value) const {
    if (target) fail(fmt::format("{} of {} twice", key_, here()), "once");
    target = std::move(value);
  }

  std::string_view where_;
  Place place_ = Place::start;
  std::string key_;
  bool has_metadata_ = false;
};

// Checks an entry against the buffer of the file, which begins at byte `buffer` and ends at byte `end`.
Safetensors::Tensor checked(Entry& entry, uint64_t buffer, uint64_t end, std::string_view where) {
  const auto fail = [&](const std::string& found_and_expected) {
    throw FormatError(fmt::format("{}: tensor \"{}\" {}", where, HeaderReader::printable(entry.name), found_and_expected));
  };
  const Dtype* dtype = find_dtype(*entry.dtype);
  if (dtype == nullptr) {
    std::vector<std::string_view> names;
    for (const Dtype& known : kDtypes) names.push_back(known.name);
    fail(fmt::format("has dtype \"{}\", expected one of {}", HeaderReader::printable(*entry.dtype), fmt::join(names, ", ")));
  }
  Safetensors::Tensor tensor{.name = std::move(entry.name), .dtype = *entry.dtype};
  entry.name = tensor.name;
  for (const uint64_t extent : *entry.shape) {
    if (extent > INT64_MAX) fail(fmt::format("has an extent of {}, expected at most 2^63 - 1", extent));
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  const std::vector<uint64_t>& offsets = *entry.offsets;
  if (offsets.size() != 2) fail(fmt::format("has {} data_offsets, expected 2", offsets.size()));
  if (offsets[0] > offsets[1]) fail(fmt::format("begins at byte {} and ends at byte {} of the buffer", offsets[0], offsets[1]));
  if (offsets[1] > end - buffer) {
    fail(fmt::format("ends at byte {} of the buffer, expected at most {} (its size): the file is truncated", offsets[1],
                     end - buffer));
  }
  const std::optional<int64_t> count = element_count(tensor.shape);
  const uint64_t size = offsets[1] - offsets[0];
  if (!count || size % dtype->size != 0 || size / dtype->size != static_cast<uint64_t>(*count)) {
    fail(fmt::format("takes {} bytes, expected the size of shape {} of {} ({} bytes each)", size, to_string(tensor.shape),
                     dtype->name, dtype->size));
  }
  tensor.begin = buffer + offsets[0];
  tensor.end = buffer + offsets[1];
  return tensor;
}

// Tensors are sorted by their bytes and fill the buffer.
void require_no_gaps(const std::vector<Safetensors::Tensor>& tensors, uint64_t buffer, uint64_t end, std::string_view where) {
  uint64_t expected = buffer;
  for (const Safetensors::Tensor& tensor : tensors) {
    if (tensor.begin != expected) {
      throw FormatError(fmt::format("{}: tensor \"{}\" begins at byte {}, expected {} (where the one before it ends): {}", where,
                                    HeaderReader::printable(tensor.name), tensor.begin, expected,
                                    tensor.begin < expected ? "tensors overlap" : "a gap"));
    }
    expected = tensor.end;
  }
  if (expected != end) {
    throw FormatError(fmt::format("{}: {} bytes, expected {} (where the last tensor ends)", where, end, expected));
  }
}

}  // namespace

Safetensors Safetensors::open(const std::filesystem::path& path) { return Safetensors(std::make_unique<FileSource>(path)); }

Safetensors Safetensors::over(std::span<const std::byte> bytes, std::string_view where) {
  return Safetensors(std::make_unique<MemorySource>(std::string(where), bytes));
}

Safetensors::Safetensors(std::unique_ptr<const ByteSource> source) : source_(std::move(source)) {
  const std::string& where = source_->name();
  const uint64_t end = source_->size();
  if (end < kPrefix) {
    throw FormatError(
        fmt::format("{}: {} bytes, expected at least {}: truncated, or not a safetensors file", where, end, kPrefix));
  }
  std::byte prefix[kPrefix];
  source_->read(0, prefix);
  const auto header_size = little_endian<uint64_t>(prefix);
  if (header_size > end - kPrefix || header_size > kLongestHeader) {
    throw FormatError(fmt::format("{}: header of {} bytes, expected at most {}: truncated, or not a safetensors file", where,
                                  header_size, std::min(end - kPrefix, kLongestHeader)));
  }
  std::string header(header_size, '\0');
  source_->read(kPrefix, std::as_writable_bytes(std::span(header)));

  HeaderReader reader(where);
  Json::sax_parse(header, &reader);
  metadata_ = std::move(reader.metadata);
  const uint64_t buffer = data_begin_ = kPrefix + header_size;
  for (Entry& entry : reader.entries) tensors_.push_back(checked(entry, buffer, end, where));

  std::vector<std::string_view> names;
  for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  if (const auto twin = std::adjacent_find(names.begin(), names.end()); twin != names.end()) {
    throw FormatError(fmt::format("{}: tensor \"{}\" twice, expected once", where, HeaderReader::printable(*twin)));
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const Tensor& a, const Tensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);  // empty tensors before the one that begins where they are
  });
  require_no_gaps(tensors_, buffer, end, where);
}

const Safetensors::Tensor* Safetensors::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(), [name](const Tensor& t) { return t.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

const Safetensors::Tensor& Safetensors::at(std::string_view name) const {
  if (const Tensor* tensor = find(name)) return *tensor;
  constexpr size_t kListed = 20;
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors_) {
    if (names.size() == kListed) {
      names.emplace_back("...");
      break;
    }
    names.push_back(HeaderReader::printable(tensor.name));
  }
  throw FormatError(fmt::format("{}: no tensor \"{}\", expected one of {}", source_->name(), name,
                                names.empty() ? "none: the file is empty" : fmt::format("{}", fmt::join(names, ", "))));
}

FloatArray Safetensors::read(std::string_view name) const {
  const Tensor& tensor = at(name);
  FloatArray array{tensor.shape, std::vector<float>((tensor.end - tensor.begin) / find_dtype(tensor.dtype)->size)};
  read_part(tensor, 0, array.values);
  return array;
}

void Safetensors::read_part(const Tensor& tensor, uint64_t first, std::span<float> values) const {
  const Dtype& dtype = *find_dtype(tensor.dtype);
  if (!dtype.type) {
    throw FormatError(fmt::format("{}: tensor \"{}\" has dtype {}, expected F32, F16, BF16 or F64", source_->name(), tensor.name,
                                  tensor.dtype));
  }
  const uint64_t count = (tensor.end - tensor.begin) / dtype.size;
  require(first <= count && values.size() <= count - first,
          "Safetensors::read_part: {} elements from {} of \"{}\", expected {} at most", values.size(), first, tensor.name, count);
  read_floats(*source_, tensor.begin + first * dtype.size, *dtype.type, values);
}

void Safetensors::read_bytes_part(const Tensor& tensor, uint64_t first, std::span<std::byte> bytes) const {
  const uint64_t count = tensor.end - tensor.begin;
  require(first <= count && bytes.size() <= count - first,
          "Safetensors::read_bytes_part: {} bytes from {} of \"{}\", expected {} at most", bytes.size(), first, tensor.name,
          count);
  source_->read(tensor.begin + first, bytes);
}

std::vector<std::byte> Safetensors::read_bytes(std::string_view name) const {
  const Tensor& tensor = at(name);
  std::vector<std::byte> bytes(tensor.end - tensor.begin);
  source_->read(tensor.begin, bytes);
  return bytes;
}

void Safetensors::require_checksum() const {
  const auto of_data = [this] {
    constexpr uint64_t kBlock = 1 << 20;
    XXH3_state_t hash;
    XXH3_64bits_reset(&hash);
    std::vector<std::byte> block(std::min(kBlock, source_->size() - data_begin_));
    for (uint64_t at = data_begin_; at < source_->size(); at += block.size()) {
      block.resize(std::min<uint64_t>(block.size(), source_->size() - at));
      source_->read(at, block);
      XXH3_64bits_update(&hash, block.data(), block.size());
    }
    return XXH3_64bits_digest(&hash);
  };
  internal::require_checksum(metadata_, of_data, source_->name());
}

struct SafetensorsWriter::Hash {
  Hash() { XXH3_64bits_reset(&state); }
  XXH3_state_t state;
};

SafetensorsWriter::~SafetensorsWriter() = default;

uint64_t data_checksum(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

void require_checksum(const std::map<std::string, std::string>& metadata, const std::function<uint64_t()>& of_data,
                      std::string_view where) {
  const auto expected = metadata.find(kChecksumKey);
  if (expected == metadata.end()) return;
  const std::string found = hexadecimal(of_data());
  if (found == expected->second) return;
  throw FormatError(fmt::format("{}: the tensors have the checksum {}, expected {} (metadata): the file is damaged", where, found,
                                expected->second));
}
std::string hexadecimal(uint64_t checksum) { return fmt::format("{:016x}", checksum); }

namespace {

// What comes before the data, its checksum still unknown.
struct Front {
  std::vector<std::byte> bytes;
  uint64_t checksum_at = 0;
  uint64_t data = 0;  // bytes that follow
};

Front front_of(std::span<const TensorHead> heads, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  // First, so that it is easy to find: its value is known only after the last byte.
  require(!metadata.contains(kChecksumKey), "write_safetensors: metadata has \"{}\", which is reserved", kChecksumKey);
  const std::string unknown = hexadecimal(0);
  header[kMetadata][kChecksumKey] = unknown;
  for (const auto& [key, value] : metadata) header[kMetadata][key] = value;
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const TensorHead& head : heads) {
    const Dtype* dtype = find_dtype(head.dtype);
    require(dtype != nullptr, "write_safetensors: tensor \"{}\" has dtype \"{}\", expected one like F32", head.name, head.dtype);
    require(head.name != kMetadata && names.insert(head.name).second, "write_safetensors: name \"{}\" is reserved or used twice",
            head.name);
    const int64_t count = element_count(head.shape).value_or(INT64_MAX);
    require(static_cast<uint64_t>(count) <= (INT64_MAX - offset) / dtype->size,
            "write_safetensors: tensor \"{}\" has shape {}, which is too large", head.name, to_string(head.shape));
    const uint64_t end = offset + static_cast<uint64_t>(count) * dtype->size;
    header[head.name] = {{"dtype", head.dtype}, {"shape", head.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = [&header] {
    try {
      return header.dump();
    } catch (const Json::type_error&) {
      throw InvalidArgument("write_safetensors: a name or metadata is not UTF-8");
    }
  }();
  text.resize((text.size() + kPrefix - 1) / kPrefix * kPrefix, ' ');  // the buffer begins at a multiple of 8

  std::vector<std::byte> bytes(kPrefix + text.size());
  for (size_t i = 0; i < kPrefix; ++i) bytes[i] = static_cast<std::byte>(text.size() >> (8 * i));
  std::memcpy(bytes.data() + kPrefix, text.data(), text.size());
  return {.bytes = std::move(bytes), .checksum_at = kPrefix + text.find(unknown), .data = offset};
}

std::vector<TensorHead> heads_of(std::span<const TensorToWrite> tensors) {
  std::vector<TensorHead> heads;
  for (const TensorToWrite& tensor : tensors) {
    const Dtype* dtype = find_dtype(tensor.dtype);
    const std::optional<int64_t> count = element_count(tensor.shape);
    require(dtype == nullptr || (count && tensor.bytes.size() % dtype->size == 0 &&
                                 tensor.bytes.size() / dtype->size == static_cast<uint64_t>(*count)),
            "write_safetensors: tensor \"{}\" has {} bytes, expected the size of shape {} of {}", tensor.name,
            tensor.bytes.size(), to_string(tensor.shape), tensor.dtype);
    heads.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  return heads;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorHead> heads,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path), hash_(std::make_unique<Hash>()) {
  const Front front = front_of(heads, metadata);
  data_at_ = front.bytes.size();
  size_ = data_at_ + front.data;
  checksum_at_ = front.checksum_at;
  write(front.bytes);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  require(bytes.size() <= size_ - written_, "write_safetensors: {} more bytes, expected at most {} (from the shapes)",
          bytes.size(), size_ - written_);
  file_.write(bytes);
  if (written_ >= data_at_) XXH3_64bits_update(&hash_->state, bytes.data(), bytes.size());
  written_ += bytes.size();
}

void SafetensorsWriter::commit() {
  require(written_ == size_, "write_safetensors: {} bytes are missing, expected as many as the shapes need", size_ - written_);
  const std::string checksum = hexadecimal(XXH3_64bits_digest(&hash_->state));
  file_.write_at(checksum_at_, std::as_bytes(std::span(checksum)));
  file_.commit();
}

std::vector<std::byte> safetensors_image(std::span<const TensorToWrite> tensors,
                                         const std::map<std::string, std::string>& metadata) {
  Front front = front_of(heads_of(tensors), metadata);
  std::vector<std::byte> image = std::move(front.bytes);
  const size_t data_at = image.size();
  image.reserve(data_at + front.data);
  for (const TensorToWrite& tensor : tensors) image.insert(image.end(), tensor.bytes.begin(), tensor.bytes.end());
  const std::string checksum = hexadecimal(data_checksum(std::span(image).subspan(data_at)));
  std::memcpy(image.data() + front.checksum_at, checksum.data(), checksum.size());
  return image;
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter file(path, heads_of(tensors), metadata);
  for (const TensorToWrite& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

}  // namespace raffia::internal
