#include "io/formats/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/message.h"
#include "io/formats/elements.h"
#include "io/formats/file.h"
#include "io/formats/image.h"
#include "io/formats/json_fields.h"
#include "io/formats/session_file_v1.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxPositions = int64_t{1} << 60;
constexpr uint64_t kMaxBytesOfDescription = 1 << 20;  // kMaxSessionParts memories with their tails take half of it

// Names in the description and of blocks: each is written and read by these.
constexpr const char* kSampling = "sampling";
constexpr const char* kBlocks = "blocks";
constexpr const char* kDraws = "draws";
constexpr const char* kRecent = "recent";
constexpr const char* kLogits = "logits";
std::string memory_name(size_t attention) { return fmt::format("attention.{}.memory", attention); }
std::string tail_name(size_t attention) { return fmt::format("attention.{}.tail", attention); }

// The sampling options by name. `visit` is called with each name and member.
template <typename Options, typename Visit>
void visit_sampling(Options& options, const Visit& visit) {
  visit("repetition_penalty", options.repetition_penalty);
  visit("repetition_window", options.repetition_window);
  visit("temperature", options.temperature);
  visit("top_k", options.top_k);
  visit("top_p", options.top_p);
  visit("min_p", options.min_p);
  visit("seed", options.seed);
}

// SamplingOptions::check() checks the ranges.
void read_option(JsonFields& fields, const char* name, double& value) {
  value = fields.number(name, std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max(), value);
}
void read_option(JsonFields& fields, const char* name, int64_t& value) {
  value = fields.integer(name, INT64_MIN, INT64_MAX, value);
}
void read_option(JsonFields& fields, const char* name, uint64_t& value) { value = fields.unsigned_integer(name, value); }

// Collects blocks and lists them for the description.
class BlockWriter {
 public:
  template <class Word>
  void add(const std::string& name, std::span<const Word> values) {
    list_.push_back({{"name", name}, {"bytes", values.size_bytes()}});
    const size_t at = bytes_.size();
    bytes_.resize(at + values.size_bytes());
    if (values.empty()) return;
    std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    swap_if_big_endian<Word>(std::span(bytes_).subspan(at));
  }
  const Json& list() const { return list_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  Json list_ = Json::array();
  std::vector<std::byte> bytes_;
};

// Padded with spaces, so that its length does not depend on the values of the sampling options.
std::string description_of(const SessionImage& image, const Json& blocks) {
  constexpr size_t kLongestSampling = 256;  // names 96, four doubles of 24, three integers of 20
  Json sampling;
  visit_sampling(image.sampling, [&](const char* name, const auto& value) { sampling[name] = value; });
  const size_t length = sampling.dump().size();
  const std::string padding(kLongestSampling - std::min(length, kLongestSampling), ' ');
  return Json({{kSampling, sampling}, {kBlocks, blocks}}).dump() + padding;
}

template <class Word>
std::vector<Word> words_of(const SessionBlock& block, std::string_view where) {
  if (block.bytes.size() % sizeof(Word) != 0) {
    throw FormatError(fmt::format("{}: block \"{}\" has {} bytes, expected a multiple of {}", where, block.name,
                                  block.bytes.size(), sizeof(Word)));
  }
  std::vector<Word> values(block.bytes.size() / sizeof(Word));
  if (!values.empty()) std::memcpy(values.data(), block.bytes.data(), block.bytes.size());
  swap_if_big_endian<Word>(std::as_writable_bytes(std::span(values)));
  return values;
}

// A block that is missing is an empty one.
SessionBlock block_of(std::span<const SessionBlock> blocks, const std::string& name) {
  const auto found = std::ranges::lower_bound(blocks, name, {}, &SessionBlock::name);
  return found != blocks.end() && found->name == name ? *found : SessionBlock{.name = name, .bytes = {}};
}

Memory memory_of(const SessionBlock& block, std::string_view where) {
  try {
    return Memory::from_bytes(block.bytes);
  } catch (const FormatError& error) {
    throw FormatError(fmt::format("{}: block \"{}\": memory is damaged: {}", where, block.name, without_origin(error.what())));
  }
}

struct Contents {
  JsonFields description;
  std::vector<SessionBlock> blocks;  // sorted by name
};

// `left`: the bytes after the description, which lists them.
std::vector<SessionBlock> blocks_in(std::span<const std::byte> left, JsonFields& description) {
  std::vector<SessionBlock> blocks;
  if (description.has(kBlocks)) {
    for (JsonFields& entry : description.objects(kBlocks)) {
      const auto size = static_cast<size_t>(entry.integer("bytes", 0, std::ssize(left)));
      blocks.push_back({.name = entry.string("name"), .bytes = left.first(size)});
      left = left.subspan(size);
    }
  }
  if (!left.empty()) description.refuse(kBlocks, fmt::format("leaves {} bytes at the end, expected none", left.size()));
  std::ranges::sort(blocks, {}, &SessionBlock::name);
  if (const auto twice = std::ranges::adjacent_find(blocks, {}, &SessionBlock::name); twice != blocks.end()) {
    description.refuse(kBlocks, fmt::format("names {} twice", json_text(Json(twice->name))));
  }
  return blocks;
}

// `bytes`: at least a header, whose last field is the size of the description.
Contents contents_of(std::span<const std::byte> bytes, std::string_view where) {
  constexpr size_t kSizeAt = kSessionImage.payload_size_at() - 8;
  const auto size = little_endian<uint64_t>(bytes, kSizeAt);
  const std::span<const std::byte> payload = bytes.subspan(kSessionImage.header_size());
  if (const auto max = std::min<uint64_t>(kMaxBytesOfDescription, payload.size()); size > max) {
    throw FormatError(fmt::format("{}: description of {} bytes at byte {}, expected at most {}", where, size, kSizeAt, max));
  }
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), size);
  JsonFields description = JsonFields::parse(text, fmt::format("{}: description of the session", where));
  std::vector<SessionBlock> blocks = blocks_in(payload.subspan(size), description);
  return {.description = std::move(description), .blocks = std::move(blocks)};
}

void require_known_names(JsonFields& description, size_t memories) {
  std::vector<std::string> known = {JsonFields::kRequires, kSampling, kBlocks, kDraws, kRecent, kLogits};
  const SamplingOptions options;
  visit_sampling(options, [&](const char* name, const auto&) { known.push_back(fmt::format("{}.{}", kSampling, name)); });
  for (size_t i = 0; i < memories; ++i) {
    known.push_back(memory_name(i));
    known.push_back(tail_name(i));
  }
  description.require_known(known);
}

void read_session_v2(std::span<const std::byte> bytes, std::string_view where, SessionImage& image) {
  auto [description, blocks] = contents_of(bytes, where);
  size_t memories = 0;
  while (!block_of(blocks, memory_name(memories)).bytes.empty()) ++memories;
  if (memories > kMaxSessionParts) {
    throw FormatError(fmt::format("{}: {} memories, expected at most {}", where, memories, kMaxSessionParts));
  }
  require_known_names(description, memories);
  for (size_t i = 0; i < memories; ++i) {
    image.parts.push_back({.past = memory_of(block_of(blocks, memory_name(i)), where),
                           .tail = words_of<float>(block_of(blocks, tail_name(i)), where)});
  }
  if (description.has(kSampling)) {
    JsonFields options = description.object(kSampling);
    visit_sampling(image.sampling, [&](const char* name, auto& value) { read_option(options, name, value); });
  }
  const std::vector<uint64_t> draws = words_of<uint64_t>(block_of(blocks, kDraws), where);
  if (draws.size() > 1)
    throw FormatError(fmt::format("{}: block \"{}\" has {} numbers, expected 1", where, kDraws, draws.size()));
  image.draws = draws.empty() ? 0 : draws[0];
  image.recent = words_of<int32_t>(block_of(blocks, kRecent), where);
  image.logits = words_of<float>(block_of(blocks, kLogits), where);
}

std::span<const float> floats_of(const View4& rows) {
  return {static_cast<const float*>(rows.data()), static_cast<size_t>(rows.size())};
}

enum class Numbers : uint8_t {
  finite,
  logarithms,  // -inf too: no weight
  all_but_nan,
};

// Throws if a number is impossible in a session. Otherwise it would be found in the logits of the next token only, and the
// weights of the model would be suspected.
void require_numbers(std::span<const float> values, Numbers allowed, std::string_view what, std::string_view where) {
  const auto is_possible = [allowed](float value) {
    return std::isfinite(value) || (allowed == Numbers::logarithms && value == -std::numeric_limits<float>::infinity()) ||
           (allowed == Numbers::all_but_nan && !std::isnan(value));
  };
  const auto bad = std::ranges::find_if_not(values, is_possible);
  if (bad == values.end()) return;
  throw FormatError(
      fmt::format("{}: {} contain {}, expected finite numbers: the session is damaged", where, what, not_finite_text(*bad)));
}

Numbers numbers_of(WindowPart part) {
  switch (part) {
    case WindowPart::gates:  // of an open or closed gate, before the sigmoid
      return Numbers::all_but_nan;
    case WindowPart::log_decay:
    case WindowPart::summary_weights:
    case WindowPart::folded_weights:
    case WindowPart::mixtures:
      return Numbers::logarithms;
    default:
      return Numbers::finite;
  }
}

void require_numbers(const SessionImage::Part& part, size_t index, std::string_view where) {
  const std::string what = fmt::format("the numbers of memory {}", index);
  if (const KeyCache* cache = part.past.key_cache()) {
    require_numbers(floats_of(cache->keys(0)), Numbers::finite, fmt::format("the keys of memory {}", index), where);
    require_numbers(floats_of(cache->values(0)), Numbers::finite, fmt::format("the values of memory {}", index), where);
  } else if (const State* state = part.past.state()) {
    const std::span<const float> all = state->data();
    const auto decays = static_cast<size_t>(state->shape().batch * state->shape().heads);  // the last part
    require_numbers(all.first(all.size() - decays), Numbers::finite, what, where);
    require_numbers(all.last(decays), Numbers::logarithms, what, where);
  } else {
    const WindowState& window = *part.past.window_state();
    for (int64_t b = 0; b < window.shape().batch; ++b) {
      for (int i = 0; i < kWindowParts; ++i) {
        const auto each = static_cast<WindowPart>(i);
        require_numbers(window.part(each, b), numbers_of(each), what, where);
      }
    }
  }
  require_numbers(part.tail, Numbers::finite, fmt::format("the tail of memory {}", index), where);
}

void require_sound(const SessionImage& image, std::string_view where) {
  try {
    image.sampling.check(where);
  } catch (const InvalidArgument& error) {
    throw FormatError(error.what());
  }
  require_numbers(image.logits, Numbers::finite, "the logits", where);
  for (size_t i = 0; i < image.parts.size(); ++i) {
    if (const int64_t batch = image.parts[i].past.batch(); batch != 1) {
      throw FormatError(fmt::format("{}: memory {} has {} entries, expected 1", where, i, batch));
    }
    require_numbers(image.parts[i], i, where);
  }
}

// The header of a sound frame. The payload says itself how it is made; the file must be as long as the header claims.
std::vector<int64_t> require_header(std::span<const std::byte> header, uint64_t total, std::string_view where) {
  std::vector<int64_t> fields = read_fields(kSessionImage, header, where);
  require_sizes(kSessionImage, header, little_endian<uint64_t>(header, kSessionImage.payload_size_at()), total, where);
  if (const int64_t position = fields[1]; position < 0 || position > kMaxPositions) {
    throw FormatError(fmt::format("{}: position is {}, expected 0 to {}", where, position, kMaxPositions));
  }
  return fields;
}

}  // namespace

std::vector<std::byte> to_bytes(const SessionImage& image) {
  BlockWriter blocks;
  blocks.add<uint64_t>(kDraws, std::array{image.draws});
  blocks.add<int32_t>(kRecent, image.recent);
  blocks.add<float>(kLogits, image.logits);
  for (size_t i = 0; i < image.parts.size(); ++i) {
    blocks.add<std::byte>(memory_name(i), image.parts[i].past.to_bytes());
    if (!image.parts[i].tail.empty()) blocks.add<float>(tail_name(i), image.parts[i].tail);
  }
  const std::string description = description_of(image, blocks.list());
  constexpr size_t kHeader = kSessionImage.header_size();
  std::vector<std::byte> bytes(kHeader + description.size() + blocks.bytes().size());
  std::memcpy(bytes.data() + kHeader, description.data(), description.size());
  std::ranges::copy(blocks.bytes(), bytes.data() + kHeader + description.size());
  put_header(kSessionImage, std::array{std::bit_cast<int64_t>(image.fingerprint), image.position, std::ssize(description)},
             bytes);
  return bytes;
}

std::vector<SessionBlock> session_blocks(std::span<const std::byte> bytes, std::string_view where) {
  return contents_of(bytes, where).blocks;
}

SessionImage session_from_bytes(std::span<const std::byte> bytes, std::string_view where) {
  const size_t header = kSessionImage.header_size();
  const std::span<const std::byte> head = bytes.first(std::min(bytes.size(), header));
  const std::vector<int64_t> fields = require_header(head, bytes.size(), where);
  require_checksum(kSessionImage, head, bytes.subspan(header), where);

  SessionImage image;
  image.fingerprint = std::bit_cast<uint64_t>(fields[0]);
  image.position = fields[1];
  if (little_endian<uint32_t>(head, ImageFormat::kVersionAt) == 1) {
    read_session_v1(bytes, fields[2], where, image);
  } else {
    read_session_v2(bytes, where, image);
  }
  require_sound(image, where);
  return image;
}

std::vector<std::byte> read_session_file(const std::filesystem::path& path,
                                         const std::function<uint64_t(const SessionHeader&)>& max_bytes) {
  File file = File::open_to_read(path);
  const uint64_t total = file.size();
  std::vector<std::byte> bytes(std::min<uint64_t>(total, kSessionImage.header_size()));
  bytes.resize(file.read(bytes));
  const std::vector<int64_t> fields = require_header(bytes, total, path.string());
  const SessionHeader header{.fingerprint = std::bit_cast<uint64_t>(fields[0]), .position = fields[1]};
  if (const uint64_t max = max_bytes ? max_bytes(header) : UINT64_MAX; total > max) {
    throw FormatError(fmt::format("{}: has {} bytes, expected at most {}, the size of a session of this model at position {}",
                                  path.string(), grouped(total), grouped(max), grouped(static_cast<uint64_t>(header.position))));
  }
  file.require_stored(fmt::format("a {}", kSessionImage.noun));
  const size_t begin = bytes.size();
  bytes.resize(total);
  bytes.resize(begin + file.read(std::span(bytes).subspan(begin)));
  return bytes;
}

}  // namespace raffia::internal
