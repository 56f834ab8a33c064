#include "io/formats/session_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/formats/elements.h"
#include "io/formats/image.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "support/paths.h"
#include "support/refusal.h"

namespace raffia::internal {
namespace {

using Bytes = std::vector<std::byte>;
using Json = nlohmann::ordered_json;

constexpr size_t kHeader = kSessionImage.header_size();

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

KeyCache keys() {
  KeyCache cache({.batch = 1, .heads = 1, .dim = 2, .value_dim = 2});
  cache.assign(0, 7, std::array{1.0F, 2.0F, 3.0F, 4.0F}, std::array{5.0F, 6.0F, 7.0F, 8.0F});
  return cache;
}

SessionImage unusual() {
  return {.fingerprint = UINT64_MAX,
          .position = 7,
          .draws = uint64_t{1} << 63,
          .sampling = {.repetition_penalty = 4.0 / 3,
                       .repetition_window = 5,
                       .temperature = 0.1,
                       .top_k = 9,
                       .top_p = 1.0 / 3,
                       .min_p = 1e-300,
                       .seed = UINT64_MAX - 1},
          .recent = {-1, 3, 2},
          .logits = {0.1F, -0.0F, 1e-40F},
          .parts = {{.past = State({.batch = 1, .heads = 2, .features = 3, .value_dim = 4}), .tail = {1, 2}},
                    {.past = keys(), .tail = {}}}};
}

struct Contents {
  Json description;
  Bytes blocks;
};

Contents contents_of(const Bytes& file) {
  const auto size = little_endian<uint64_t>(file, ImageFormat::kFieldsAt + 16);
  const std::string text(reinterpret_cast<const char*>(file.data()) + kHeader, size);
  return {.description = Json::parse(text),
          .blocks = Bytes(file.begin() + static_cast<std::ptrdiff_t>(kHeader + size), file.end())};
}

// A sound frame around the contents.
Bytes file_of(const Contents& contents, int64_t position = 7) {
  const std::string text = contents.description.dump();
  Bytes file(kHeader);
  const Bytes description = bytes_of(text);
  file.insert(file.end(), description.begin(), description.end());
  file.insert(file.end(), contents.blocks.begin(), contents.blocks.end());
  put_header(kSessionImage, std::array{int64_t{-1}, position, std::ssize(text)}, file);
  return file;
}

std::string refusal_of(const Bytes& file) {
  return refusal<FormatError>([&] { (void)session_from_bytes(file, "chat"); });
}

std::string refusal_of(const char* description, size_t bytes = 0) {
  return refusal_of(file_of({.description = Json::parse(description), .blocks = Bytes(bytes)}));
}

TEST(SessionFile, ComesBackAsItWasInVersion2) {
  const Bytes file = to_bytes(unusual());
  EXPECT_EQ(little_endian<uint32_t>(file, ImageFormat::kVersionAt), 2U);
  EXPECT_EQ(session_from_bytes(file, "chat"), unusual());
}

TEST(SessionFile, OptionsAndBlocksAreReadByNameInAnyOrder) {
  const Bytes file = to_bytes(unusual());
  const auto [description, blocks] = contents_of(file);
  Contents turned;
  for (size_t i = description["blocks"].size(), end = blocks.size(); i-- > 0;) {
    const Json& block = description["blocks"][i];
    const size_t size = block["bytes"];
    turned.description["blocks"].push_back(block);
    turned.blocks.insert(turned.blocks.end(), blocks.begin() + static_cast<std::ptrdiff_t>(end - size),
                         blocks.begin() + static_cast<std::ptrdiff_t>(end));
    end -= size;
  }
  const nlohmann::json sorted = description["sampling"];
  for (const auto& [name, value] : sorted.items()) turned.description["sampling"][name] = value;
  EXPECT_NE(turned.description.dump(), description.dump());
  EXPECT_EQ(session_from_bytes(file_of(turned), "chat"), unusual());
}

TEST(SessionFile, UnknownFieldsAndBlocksAreIgnored) {
  Contents more = contents_of(to_bytes(unusual()));
  more.description["title"] = "a talk";
  more.description["sampling"]["mirostat"] = {1, 2};
  more.description["blocks"].push_back({{"name", "pictures"}, {"bytes", 3}, {"type", "png"}});
  more.blocks.resize(more.blocks.size() + 3);
  EXPECT_EQ(session_from_bytes(file_of(more), "chat"), unusual());
}

TEST(SessionFile, MissingFieldsAndBlocksHaveDefaults) {
  const SessionImage empty = session_from_bytes(file_of({.description = Json::object(), .blocks = {}}, 0), "chat");
  EXPECT_EQ(empty, (SessionImage{.fingerprint = UINT64_MAX}));
  Contents fewer = contents_of(to_bytes(unusual()));
  fewer.description["sampling"].erase("temperature");
  SessionImage expected = unusual();
  expected.sampling.temperature = SamplingOptions().temperature;
  EXPECT_EQ(session_from_bytes(file_of(fewer), "chat"), expected);
}

TEST(SessionFile, UnknownNameThatTheFileRequiresIsRefused) {
  Contents contents = contents_of(to_bytes(unusual()));
  contents.description["requires"] = {"draws", "sampling.top_k", "attention.1.memory", "attention.0.tail"};
  EXPECT_EQ(session_from_bytes(file_of(contents), "chat"), unusual());
  for (const char* name : {"pictures", "sampling.mirostat", "attention.2.memory"}) {
    contents.description["requires"] = {"draws", name};
    EXPECT_EQ(
        refusal_of(file_of(contents)),
        fmt::format("chat: description of the session: field \"requires\" names \"{}\", which this version does not know: a "
                    "newer raffia is needed",
                    name));
  }
}

TEST(SessionFile, WrongDescriptionIsRefusedByTheNameOfItsField) {
  const std::string where = "chat: description of the session: ";
  EXPECT_EQ(refusal_of(R"({"sampling": {"top_k": "x"}})"),
            where +
                "field \"sampling.top_k\" is a value of type string, expected an integer from -9223372036854775808 to "
                "9223372036854775807");
  EXPECT_NE(refusal_of(R"({"sampling": {"top_p": 7}})").find("top_p"), std::string::npos);
  EXPECT_EQ(refusal_of(R"({"blocks": [{"name": "logits", "bytes": 9}]})", 8),
            where + "field \"blocks[0].bytes\" is 9, expected an integer from 0 to 8");
  EXPECT_EQ(refusal_of(R"({"blocks": [{"name": "logits", "bytes": -1}]})", 8),
            where + "field \"blocks[0].bytes\" is -1, expected an integer from 0 to 8");
  EXPECT_EQ(refusal_of(R"({"blocks": [{"bytes": 8}]})", 8), where + "field \"blocks[0].name\" is missing");
  EXPECT_EQ(refusal_of(R"({"blocks": []})", 8), where + "field \"blocks\" leaves 8 bytes at the end, expected none");
  EXPECT_EQ(refusal_of(R"({"blocks": [{"name": "logits", "bytes": 4}, {"name": "logits", "bytes": 4}]})", 8),
            where + "field \"blocks\" names \"logits\" twice");
  EXPECT_EQ(refusal_of(R"({"blocks": [{"name": "logits", "bytes": 7}]})", 7),
            "chat: block \"logits\" has 7 bytes, expected a multiple of 4");
  EXPECT_EQ(refusal_of(R"({"blocks": [{"name": "draws", "bytes": 16}]})", 16), "chat: block \"draws\" has 2 numbers, expected 1");
  EXPECT_NE(refusal_of(R"({"blocks": [{"name": "attention.0.memory", "bytes": 8}]})", 8)
                .find("chat: block \"attention.0.memory\": memory is damaged: "),
            std::string::npos);
}

TEST(SessionFile, DescriptionThatIsLongerThanTheFileIsRefused) {
  Bytes file = to_bytes(unusual());
  put_header(kSessionImage, std::array{int64_t{-1}, int64_t{7}, int64_t{1} << 40}, file);
  EXPECT_EQ(refusal_of(file), fmt::format("chat: description of {} bytes at byte 32, expected at most {}", int64_t{1} << 40,
                                          file.size() - kHeader));
}

TEST(SessionFile, MemoryOfSeveralTextsOrNoneIsRefused) {
  for (const int64_t batch : {0, 2}) {
    SessionImage image = unusual();
    image.parts[1].past = KeyCache({.batch = batch, .heads = 1, .dim = 2, .value_dim = 2});
    EXPECT_EQ(refusal_of(to_bytes(image)), fmt::format("chat: memory 1 has {} entries, expected 1", batch));
  }
}

TEST(SessionFile, Version1IsReadAndLaterVersionsAreRefused) {
  const auto path = golden_directory().parent_path() / "compat" / "0.1" / "lm-softmax" / "chat.session";
  Bytes file = bytes_of(read_file(path));
  EXPECT_EQ(little_endian<uint32_t>(file, ImageFormat::kVersionAt), 1U);
  const SessionImage image = session_from_bytes(file, "chat");
  EXPECT_FALSE(image.parts.empty());
  EXPECT_EQ(session_from_bytes(to_bytes(image), "again"), image);
  for (const int version : {0, 3}) {
    file[ImageFormat::kVersionAt] = static_cast<std::byte>(version);
    EXPECT_EQ(refusal_of(file), fmt::format("chat: session format version {} at byte 8, expected 1 to 2", version));
  }
}

}  // namespace
}  // namespace raffia::internal
