#include "raffia/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "io/formats/text.h"
#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/error.h"
#include "raffia/random.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<Tokenizer> trained(std::string_view spec, std::string_view text) {
  const std::vector<std::string_view> texts = {text};
  return train_tokenizer(parse_tokenizer_spec(spec), texts);
}

// Lines of words of a small made-up language, with double spaces, umlauts and empty lines.
std::string some_text(int words, uint64_t seed) {
  RandomStream random({.seed = seed});
  const std::vector<std::string> stems = {"ram", "fia", "weav", "kn\xC3\xB6t", "bas", "ket", "palm", "th", "read"};
  const std::vector<std::string> ends = {"", "ing", "ed", "s", "er", "est", " ", ",", ".", ".\n", "\n\n"};
  std::string text;
  for (int i = 0; i < words; ++i) {
    text += stems[random.next_u32() % stems.size()];
    text += stems[random.next_u32() % stems.size()];
    text += ends[random.next_u32() % ends.size()];
    text += ' ';
  }
  return text;
}

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
             static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

// Any code points, and many of the ones that tokenizers use for themselves.
std::string any_text(int characters, uint64_t seed) {
  RandomStream random({.seed = seed});
  const std::vector<std::string> traps = {
      " ",    "  ",           "\n",       "\t",           "\r\n",         "<unk>",       "<s>",
      "</s>", "<pad>",        "<0x41>",   "\xE2\x96\x81", "\xE2\x96\x85", "ramfia",      std::string(1, '\0'),
      "\\n",  "\xEF\xBF\xBD", "\xC2\xA0", "\xE3\x80\x80", "A\xCC\x88",    "\xEF\xAC\x81"};
  std::string text;
  for (int i = 0; i < characters; ++i) {
    if (random.next_u32() % 2 == 0) {
      text += traps[random.next_u32() % traps.size()];
      continue;
    }
    const uint32_t bits = 7 + random.next_u32() % 15;
    const uint32_t code = random.next_u32() % std::min<uint32_t>(1U << bits, 0x110000);
    if (code < 0xD800 || code > 0xDFFF) append_utf8(text, code);
  }
  return text;
}

void expect_same(const Tokenizer& a, const Tokenizer& b, std::string_view text) {
  EXPECT_EQ(a.kind(), b.kind());
  EXPECT_EQ(a.vocabulary(), b.vocabulary());
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  EXPECT_EQ(a.encode(text), b.encode(text));
  EXPECT_EQ(a.decode(a.encode(text)), b.decode(b.encode(text)));
}

TEST(TokenizerSpec, NamesAndSizesAreRead) {
  EXPECT_EQ(parse_tokenizer_spec("byte").kind, "byte");
  EXPECT_EQ(parse_tokenizer_spec("word").size, 0);
  EXPECT_EQ(parse_tokenizer_spec("word:20000").size, 20000);
  EXPECT_EQ(parse_tokenizer_spec("sp:4000").kind, "sp");
  for (const char* bad : {"", "bytes", "byte:4", "char:9", "sp:", "sp:0", "sp:-4", "sp:4k", "word:99999999999999999999"}) {
    EXPECT_NE(refusal<InvalidArgument>([bad] { (void)parse_tokenizer_spec(bad); }).find("parse_tokenizer_spec: \""),
              std::string::npos)
        << bad;
  }
}

TEST(Tokenizer, AnyBytesComeBackFromBytes) {
  const auto tokenizer = trained("byte", "");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  const Ids ids = tokenizer->encode(all);
  EXPECT_EQ(tokenizer->vocabulary(), 260);
  EXPECT_EQ(ids.front(), 4);
  EXPECT_EQ(ids.back(), 259);
  EXPECT_EQ(tokenizer->decode(ids), all);
}

TEST(Tokenizer, CharactersAreCodePointsAndOthersAreUnknown) {
  const auto tokenizer = trained("char",
                                 "b\xC3\xA9"
                                 "a\nb");
  EXPECT_EQ(tokenizer->vocabulary(), 4 + 4);  // \n, a, b and e with acute
  EXPECT_EQ(tokenizer->encode("\n"
                              "ab\xC3\xA9"),
            (Ids{4, 5, 6, 7}));
  EXPECT_EQ(tokenizer->encode("c\xF0\x9F\x8C\xB1"
                              "a\xFF"),
            (Ids{1, 1, 5, 1}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("b\xC3\xA9\n")), "b\xC3\xA9\n");
  const std::string text = some_text(300, 1);
  const auto more = trained("char", text);
  EXPECT_EQ(more->decode(more->encode(text)), text);
}

TEST(Tokenizer, WordsAreRankedByCountThenBytes) {
  const auto tokenizer = trained("word", " b a c \n a  b\ta\n\n");
  EXPECT_EQ(tokenizer->vocabulary(), 4 + 4);
  EXPECT_EQ(tokenizer->encode("\n a b c d"), (Ids{4, 5, 6, 7, 1}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" b a c \n a  b\ta\n\n")), "b a c\na b a\n\n");
  EXPECT_EQ(trained("word:2", "x x y\n")->encode("y x\n"), (Ids{1, 5, 4}));
}

// Word-level WikiText is counted so: words between spaces, and one token for each line end.
TEST(Tokenizer, WordCountIsWordsAndLineEnds) {
  const auto tokenizer = trained("word", " = Title = \n \n The <unk> of it . \n");
  EXPECT_EQ(tokenizer->encode(" = Title = \n \n The <unk> of it . \n").size(), 3U + 1 + 1 + 5 + 1);
}

TEST(Tokenizer, AnyTextComesBackFromPieces) {
  const std::string text = some_text(3000, 2);
  const auto tokenizer = trained("sp:400", text);
  EXPECT_EQ(tokenizer->vocabulary(), 400);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 2);  // pieces are longer than characters
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::string other = any_text(200, seed);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(other)), other) << "seed " << seed;
  }
  const std::string not_text = "ram\xFF\xC3 fia\xE2\x96";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(not_text)), not_text);
}

TEST(Tokenizer, SamePiecesAreLearnedEveryTime) {
  const std::string text = some_text(3000, 3);
  expect_same(*trained("sp:420", text), *trained("sp:420", text), text);
}

TEST(Tokenizer, PiecesAreLearnedFromLongLinesTabsAndManyCharacters) {
  std::string long_line;  // far above the limit of SentencePiece, with its reserved characters
  for (int i = 0; i < 4000; ++i) long_line += i % 7 == 0 ? "raffia\t" : i % 11 == 0 ? "weave\xE2\x96\x81" : "basket ";
  const auto tokenizer = trained("sp:300", long_line);
  EXPECT_EQ(tokenizer->encode(" basket").size(), 1U);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(long_line)), long_line);

  std::string many;  // 2000 characters do not fit 600 pieces: the frequent ones do
  for (uint32_t i = 0; i < 20000; ++i) append_utf8(many, 0x4E00 + i * i % 2003);
  const auto small = trained("sp:600", many);
  EXPECT_LE(small->vocabulary(), 600);
  EXPECT_EQ(small->decode(small->encode(many)), many);
  EXPECT_LE(trained("sp:5000", "a short text")->vocabulary(), 300);  // as many as there are
}

TEST(Tokenizer, SpecialIdsLeaveNoTraceAndOthersThrow) {
  const std::string text = some_text(200, 4);
  for (const char* spec : {"byte", "char", "word", "sp:300"}) {
    const auto tokenizer = trained(spec, text);
    Ids ids = {Tokenizer::kBegin};
    for (const int32_t id : tokenizer->encode("ramfia")) ids.insert(ids.end(), {id, Tokenizer::kPad});
    ids.push_back(Tokenizer::kEnd);
    const std::string decoded = tokenizer->decode(ids);
    EXPECT_EQ(decoded, tokenizer->decode(tokenizer->encode("ramfia"))) << spec;
    for (const int64_t bad : {int64_t{-1}, tokenizer->vocabulary()}) {
      EXPECT_THROW((void)tokenizer->decode(Ids{static_cast<int32_t>(bad)}), InvalidArgument) << spec;
    }
    EXPECT_TRUE(tokenizer->encode("").empty());
  }
}

TEST(Tokenizer, ComesBackFromItsDirectoryAsItWas) {
  const std::string text = some_text(500, 5);
  for (const char* spec : {"byte", "char", "word", "word:20", "sp:300"}) {
    const TemporaryDirectory directory("tokenizer_test");
    const auto tokenizer = trained(spec, text);
    tokenizer->save(directory.path());
    expect_same(*load_tokenizer(directory.path()), *tokenizer, text);
  }
}

TEST(Tokenizer, FingerprintsDiffer) {
  std::vector<uint64_t> prints;
  for (const char* spec : {"byte", "char", "word", "word:20", "sp:300", "sp:301"}) {
    prints.push_back(trained(spec, some_text(500, 6))->fingerprint());
  }
  prints.push_back(trained("char", "abc")->fingerprint());
  for (size_t i = 0; i < prints.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(prints[i], prints[j]) << i << " and " << j;
  }
}

TEST(Tokenizer, TextThatTeachesNothingIsRefused) {
  for (const char* spec : {"char", "word", "sp:300"}) {
    EXPECT_NE(refusal<InvalidArgument>([&] { (void)trained(spec, ""); }).find("the text is empty"), std::string::npos) << spec;
    EXPECT_NE(refusal<InvalidArgument>([&] { (void)trained(spec, "abc\xFF"); }).find("byte 3 is not UTF-8 text"),
              std::string::npos)
        << spec;
  }
  EXPECT_NE(refusal<InvalidArgument>([] { (void)trained("sp:200", "text"); }).find("sp:200, expected more than"),
            std::string::npos);
  EXPECT_NE(refusal<InvalidArgument>([] { (void)trained("sp", "\n\n"); }).find("only line ends"), std::string::npos);
}

TEST(Tokenizer, BrokenFilesAreRefusedByNameAndField) {
  const auto refused = [](const std::string& json) {
    return refusal<FormatError>([&] { (void)tokenizer_from_json(json, "model"); });
  };
  const auto expect = [&](const std::string& json, const std::string& message) {
    const std::string said = refused(json);
    EXPECT_EQ(said.rfind("model/tokenizer.json: ", 0), 0U) << said;
    EXPECT_NE(said.find(message), std::string::npos) << said;
  };
  EXPECT_EQ(refused(R"({"kind":"byte","version":1})"), "accepted");
  EXPECT_EQ(refused(R"({"kind":"char","version":1,"characters":"\nab"})"), "accepted");
  EXPECT_EQ(refused(R"({"kind":"word","version":1,"words":["\n","a"]})"), "accepted");
  expect(R"({"kind":"byte"})", "field \"version\" is missing");
  expect(R"({"kind":"byte","version":2})", "field \"version\" is 2, expected");
  expect(R"({"kind":"bytes","version":1})", "field \"kind\" is \"bytes\", expected byte, char, word, sp, bpe or scored");
  expect(R"({"kind":"byte","version":1,"words":[]})", "field \"words\" is unknown");
  expect(R"({"kind":"char","version":1,"characters":""})", "field \"characters\" is empty");
  expect(R"({"version":"1.0","added_tokens":[],"model":{"type":"BPE"}})", "is a tokenizer of Hugging Face");
  expect(R"({"kind":"char","version":1,"characters":"aba"})", "out of order at byte 2: U+0061 after U+0062");
  expect(R"({"kind":"char","version":1,"characters":"\u0000"})", "is not text at byte 0");
  expect(R"({"kind":"word","version":1,"words":[]})", "does not begin with");
  expect(R"({"kind":"word","version":1,"words":["\n","a","a"]})", "the same word at indices 1 and 2");
  expect(R"({"kind":"word","version":1,"words":["\n","a b"]})", "has white space at index 1");
  expect(R"({"kind":"word","version":1,"words":["\n",7]})", "has 7 at index 1");
  expect(R"({"kind":"sp","version":1,"model":"../../x","checksum":1})", "field \"model\" names another file");
}

TEST(Tokenizer, DamagedModelOfPiecesIsRefused) {
  const TemporaryDirectory directory("tokenizer_test");
  trained("sp:300", some_text(500, 7))->save(directory.path());
  std::string model = read_file(directory.path() / "tokenizer.model");
  model[model.size() / 2] ^= 1;
  directory.write("tokenizer.model", model);
  const std::string said = refusal<FormatError>([&] { (void)load_tokenizer(directory.path()); });
  EXPECT_NE(said.find("tokenizer.model: has checksum"), std::string::npos) << said;
  std::filesystem::remove(directory.path() / "tokenizer.model");
  EXPECT_THROW((void)load_tokenizer(directory.path()), IoError);
}

// A field of protobuf: bytes with their number and length, which is below 128.
std::string message(int number, const std::string& bytes) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}

// SentencePiece would crash when it encodes with these; their checksums are right.
TEST(Tokenizer, ModelsOfPiecesThatReplaceCharactersAreRefused) {
  const TemporaryDirectory directory("tokenizer_test");
  trained("sp:300", some_text(500, 7))->save(directory.path());
  const std::string model = read_file(directory.path() / "tokenizer.model");
  const auto said_of = [&](const std::string& bytes) {
    directory.write("tokenizer.model", bytes);
    return refusal<FormatError>([&] {
      const std::string json = fmt::format(R"({{"kind":"sp","version":1,"model":"tokenizer.model","checksum":{}}})",
                                           tokenizer_fingerprint("sp", bytes));
      (void)tokenizer_from_json(json, directory.path())->encode("some text");
    });
  };
  EXPECT_EQ(said_of(model), "accepted");
  for (const int spec : {3, 5}) {  // normalizer_spec, denormalizer_spec
    const std::string said = said_of(model + message(spec, message(2, std::string(40, '\xFF'))));
    EXPECT_NE(said.find("tokenizer.model: replaces characters by a table (precompiled_charsmap)"), std::string::npos) << said;
  }
  EXPECT_NE(said_of(model + message(2, "\x18\x01")).find("has model type 1, expected 2"), std::string::npos);
  EXPECT_NE(said_of(model + "\x1B").find("a field has an unknown type"), std::string::npos);
  EXPECT_NE(said_of(model + "\x1A\x7F").find("a field is truncated"), std::string::npos);
  EXPECT_NE(said_of(model + "\x80").find("a number is truncated"), std::string::npos);
}

}  // namespace
}  // namespace raffia::internal
