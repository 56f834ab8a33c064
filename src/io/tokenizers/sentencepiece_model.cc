#include "io/tokenizers/sentencepiece_model.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

// Numbers of fields, from sentencepiece_model.proto.
constexpr uint32_t kTrainerSpec = 2, kNormalizerSpec = 3, kDenormalizerSpec = 5;  // of ModelProto
constexpr uint32_t kModelType = 3;                                                // of TrainerSpec
constexpr uint64_t kBpe = 2;                                                      // of its ModelType
constexpr std::string_view kNameOfBpe = "byte pair encoding";
constexpr uint32_t kCharsMap = 2, kRules = 6;  // of NormalizerSpec

struct Field {
  uint32_t number = 0;
  uint64_t value = 0;           // of a number
  std::string_view bytes = {};  // of bytes and messages
};

// One message in protobuf's encoding, field by field.
class Message {
 public:
  Message(std::string_view bytes, std::string_view where) : bytes_(bytes), where_(where) {}

  std::optional<Field> next() {
    if (at_ == bytes_.size()) return {};
    const uint64_t tag = varint();
    if (tag > UINT32_MAX) refuse("a field number is too large");
    Field field{.number = static_cast<uint32_t>(tag) >> 3};
    switch (tag & 7) {
      case 0:
        field.value = varint();
        return field;
      case 1:
        field.bytes = take(8);
        return field;
      case 2:
        field.bytes = take(varint());
        return field;
      case 5:
        field.bytes = take(4);
        return field;
      default:  // groups, which are obsolete
        refuse("a field has an unknown type");
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw FormatError(fmt::format("{}: is not a SentencePiece model: {} at byte {}", where_, what, grouped(at_)));
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) refuse("a number is truncated");
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    refuse("a number is too long");
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) refuse("a field is truncated");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  std::string_view bytes_, where_;
  size_t at_ = 0;
};

void check_normalizer(std::string_view bytes, std::string_view where) {
  Message spec(bytes, where);
  while (const auto field = spec.next()) {
    if ((field->number == kCharsMap || field->number == kRules) && !field->bytes.empty()) {
      throw FormatError(fmt::format(
          "{}: replaces characters by a table (precompiled_charsmap), expected none: models are trained with identity", where));
    }
  }
}

// Whether its model type is byte pair encoding; without the field it is another type.
bool check_trainer(std::string_view bytes, std::string_view where) {
  Message spec(bytes, where);
  bool is_bpe = false;
  while (const auto field = spec.next()) {
    if (field->number != kModelType) continue;
    is_bpe = field->value == kBpe;
    if (!is_bpe) throw FormatError(fmt::format("{}: has model type {}, expected {} ({})", where, field->value, kBpe, kNameOfBpe));
  }
  return is_bpe;
}

}  // namespace

void check_sentencepiece_model(std::string_view bytes, std::string_view where) {
  Message model(bytes, where);
  bool is_bpe = false;
  while (const auto field = model.next()) {
    if (field->number == kNormalizerSpec || field->number == kDenormalizerSpec) check_normalizer(field->bytes, where);
    if (field->number == kTrainerSpec && check_trainer(field->bytes, where)) is_bpe = true;
  }
  if (!is_bpe) throw FormatError(fmt::format("{}: has no model type, expected {} ({})", where, kBpe, kNameOfBpe));
}

}  // namespace raffia::internal
