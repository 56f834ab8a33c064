// Tokenizers that come from elsewhere: scored pieces of llama2.c, byte pair encoding of Hugging Face.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/formats/text.h"
#include "io/imports/hf_tokenizer.h"
#include "io/tokenizers/tokenizer_scored.h"
#include "raffia/error.h"
#include "raffia/random.h"
#include "raffia/tokenizer.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::ordered_json;

const std::string kMark = "\xE2\x96\x81";

std::unique_ptr<Tokenizer> scored(const std::string& bytes) {
  return make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(bytes)), "tok.bin"));
}

BpeModel bpe_model(const Json& json, const std::string& config = "", int64_t vocabulary = 0) {
  return bpe_from_hf({.tokenizer = json.dump(), .tokenizer_config = config, .where = "hf.json", .where_config = "hf_config.json"},
                     vocabulary);
}

std::unique_ptr<Tokenizer> bpe(const Json& json, const std::string& config = "", int64_t vocabulary = 0) {
  return make_bpe_tokenizer(bpe_model(json, config, vocabulary), "hf.json");
}

// GPT-2 writes a space as U+0120.
const std::string kSpace = "\xC4\xA0";

Json tiny_bytes() {
  return hf_byte_level({{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {kSpace, "w"}, {kSpace + "w", "o"}, {"l", "d"}});
}

Json tiny_marks() { return hf_marks({kMark, "a", "b", "c", "\n"}, {{"a", "b"}, {kMark, "a"}, {"ab", "c"}, {kMark, kMark}}); }

// Begin, then the text.
std::string there_and_back(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids = tokenizer.encode(text);
  if (tokenizer.begin() >= 0) ids.insert(ids.begin(), tokenizer.begin());
  return tokenizer.decode(ids);
}

std::string any_text(uint64_t seed) {
  RandomStream random({.seed = seed});
  const std::vector<std::string> parts = {" ",        "  ",     "\n",           "a",    "b",    "abc",
                                          "hello",    " world", "'ll",          "2024", "\xFF", "\xC3",
                                          "\xC3\xA9", "<0x41>", "\xE4\xBD\xA0", "\t",   "<",    std::string(1, '\0')};
  std::string text;
  for (uint32_t i = random.next_u32() % 30; i > 0; --i) text += parts[random.next_u32() % parts.size()];
  return text;
}

TEST(ScoredTokenizer, BestScoreMergesFirstAndLeftmostOfEqualOnes) {
  // 259: " ", a, b, c, ab, bc, abc, " a"
  auto pieces = scored_pieces({" ", "a", "b", "c", "bc", "ab", "abc", " a", "aa"});
  const auto tokenizer = scored(tok_bin(pieces));
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{259, 265}));                // bc first, then a with it
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{259, 264}));                 // ab scores more than " a"
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{266, 267}));                // " a" before aa
  pieces[263].second = pieces[264].second = -1;                        // bc and ab alike
  EXPECT_EQ(scored(tok_bin(pieces))->encode("abc"), (Ids{259, 265}));  // ab, then abc
  EXPECT_EQ(scored(tok_bin(pieces))->encode("abbc"), (Ids{259, 264, 263}));
}

TEST(ScoredTokenizer, UnknownCharactersAreBytesAndTheLeadingSpaceIsNotTheTexts) {
  const auto tokenizer = scored(tok_bin(scored_pieces({" ", "a", " a"})));
  EXPECT_EQ(tokenizer->encode("\xC3\xA9"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->encode("a"), (Ids{261}));
  EXPECT_EQ(tokenizer->encode_rest("a"), (Ids{260}));
  EXPECT_EQ(tokenizer->encode_rest(" a"), (Ids{261}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 261, 261}), "a a");
  EXPECT_EQ(tokenizer->decode(Ids{261}), " a");  // a continuation keeps its space
  EXPECT_EQ(tokenizer->decode(Ids{1, 259, 260, 2}), "a");
  EXPECT_THROW((void)tokenizer->decode(Ids{262}), InvalidArgument);
  EXPECT_EQ(tokenizer->begin(), 1);
  EXPECT_EQ(tokenizer->end(), 2);
  EXPECT_TRUE(tokenizer->begins_texts());
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(there_and_back(*tokenizer, any_text(seed)), any_text(seed)) << seed;
}

// The merges of a long text are those of the plain algorithm: look at all pairs, merge the best, start again.
TEST(ScoredTokenizer, MergesAsThePlainAlgorithmDoes) {
  RandomStream random({.seed = 5});
  std::vector<std::string> names = {" ", "a", "b", "c"};
  for (int i = 0; i < 60; ++i) {
    std::string piece = names[random.next_u32() % names.size()] + names[random.next_u32() % names.size()];
    if (std::ranges::find(names, piece) == names.end()) names.push_back(piece);
  }
  auto pieces = scored_pieces(names);
  for (size_t i = 259; i < pieces.size(); ++i) pieces[i].second = static_cast<float>(random.next_u32() % 12);
  const auto tokenizer = scored(tok_bin(pieces));
  const auto id_of = [&](const std::string& piece) {
    for (size_t i = 259; i < pieces.size(); ++i) {
      if (pieces[i].first == piece) return static_cast<int32_t>(i);
    }
    return -1;
  };
  for (int round = 0; round < 30; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text += " abc"[random.next_u32() % 4];
    Ids ids = {id_of(" ")};
    for (const char c : text) ids.push_back(id_of(std::string(1, c)));
    while (true) {
      int32_t best = -1;
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const int32_t merged = id_of(pieces[static_cast<size_t>(ids[i])].first + pieces[static_cast<size_t>(ids[i + 1])].first);
        if (merged >= 0 && (best < 0 || pieces[static_cast<size_t>(merged)].second > pieces[static_cast<size_t>(best)].second)) {
          best = merged;
          at = i;
        }
      }
      if (best < 0) break;
      ids[at] = best;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    EXPECT_EQ(tokenizer->encode(text), ids) << text;
  }
}

TEST(ScoredTokenizer, BrokenFilesAreRefused) {
  const std::string whole = tok_bin(scored_pieces({" ", "a"}));
  const auto refused = [](const std::string& bytes) { return refusal<FormatError>([&] { (void)scored(bytes); }); };
  EXPECT_EQ(refused(whole), "accepted");
  EXPECT_NE(refused(whole.substr(0, whole.size() - 1)).find("tok.bin: ends within piece 260"), std::string::npos);
  EXPECT_NE(refused(whole.substr(0, 3)).find("3 bytes, expected at least 4: truncated"), std::string::npos);
  EXPECT_NE(refused(whole + "abc").find("ends within piece 261"), std::string::npos);
  EXPECT_NE(refused(std::string(16, '\xFF')).find("its longest piece has -1 bytes"), std::string::npos);
  EXPECT_NE(refused(tok_bin({{"a", 0.0F}})).find("1 pieces, expected at least 3"), std::string::npos);
  EXPECT_NE(refused(tok_bin({{"a", NAN}})).find("piece 0 has score nan"), std::string::npos);
  EXPECT_NE(refused(tok_bin({{"a\xFF", 0.0F}})).find("piece 0 is not UTF-8 text at its byte 1"), std::string::npos);
  std::string negative = whole;
  negative[8] = '\xFF', negative[9] = '\xFF', negative[10] = '\xFF', negative[11] = '\xFF';
  EXPECT_NE(refused(negative).find("piece 0 has -1 bytes"), std::string::npos);
}

TEST(BpeTokenizer, BytesMergeByRankWithinWords) {
  const auto tokenizer = bpe(tiny_bytes());
  // Bytes: '!' is 0, so 'h' is 71; the space is the 33rd of those from 188 on. Merges begin at 256.
  EXPECT_EQ(tokenizer->encode("hello"), (Ids{259}));
  EXPECT_EQ(tokenizer->encode("hell"), (Ids{258}));
  EXPECT_EQ(tokenizer->encode("hello world"), (Ids{259, 261, 'r' - '!', 262}));
  EXPECT_EQ(tokenizer->encode(" "), (Ids{188 + 32}));
  EXPECT_EQ(tokenizer->decode(Ids{259, 261, 'r' - '!', 262}), "hello world");
  EXPECT_EQ(tokenizer->encode("hello<|end|>hello"), (Ids{259, 263, 259}));
  EXPECT_EQ(tokenizer->decode(Ids{259, 263, 259}), "hellohello");  // special: no trace
  EXPECT_EQ(tokenizer->vocabulary(), 264);
  EXPECT_EQ(tokenizer->begin(), -1);
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(there_and_back(*tokenizer, any_text(seed)), any_text(seed)) << seed;
}

TEST(BpeTokenizer, MarksStandForSpacesAndBytesForTheRest) {
  const auto tokenizer = bpe(tiny_marks());
  // 259: mark, a, b, c, \n, ab, mark a, abc, mark mark
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{259, 266}));
  EXPECT_EQ(tokenizer->encode("ac  x"), (Ids{265, 262, 267, 3 + 'x'}));
  EXPECT_EQ(tokenizer->encode("\xC3\xA9"), (Ids{259, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer->encode("a</s>b"), (Ids{265, 2, 259, 261}));
  EXPECT_EQ(tokenizer->encode_rest("a</s>b"), (Ids{260, 2, 259, 261}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 265, 262, 267}), "ac  ");
  EXPECT_EQ(tokenizer->decode(Ids{265}), " a");
  EXPECT_EQ(tokenizer->begin(), 1);
  EXPECT_TRUE(tokenizer->begins_texts());
  for (uint64_t seed = 0; seed < 50; ++seed) EXPECT_EQ(there_and_back(*tokenizer, any_text(seed)), any_text(seed)) << seed;
}

TEST(BpeTokenizer, MetaspaceSaysTheSameAsPrependAndReplace) {
  Json json = tiny_marks();
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "always"}, {"split", false}};
  EXPECT_EQ(bpe(json)->fingerprint(), bpe(tiny_marks())->fingerprint());
  json["pre_tokenizer"]["prepend_scheme"] = "first";
  EXPECT_EQ(bpe(json)->encode("a</s>b"), (Ids{265, 2, 261}));
  json["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_EQ(bpe(json)->encode("ab"), (Ids{264}));
}

TEST(BpeTokenizer, SplitsAreReadFromTheFile) {
  Json json = tiny_bytes();
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  EXPECT_EQ(bpe_model(json).split, WordSplit::gpt2);
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({{{"type", "Digits"}, {"individual_digits", true}}, byte_level})}};
  EXPECT_EQ(bpe_model(json).split, WordSplit::gpt2_digits);
  Json plain = byte_level;
  plain["use_regex"] = false;
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", kLlama3Pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, plain})}};
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(bpe_model(json).split, WordSplit::llama3);
  EXPECT_TRUE(bpe_model(json).whole_words);
}

TEST(BpeTokenizer, WholeWordsStayWholeWhereMergesAreIgnored) {
  Json json = tiny_bytes();
  json["model"]["merges"] = Json::array();
  EXPECT_EQ(bpe(json)->encode("hello").size(), 5U);
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(bpe(json)->encode("hello hell"), (Ids{259, 188 + 32, 'h' - '!', 'e' - '!', 'l' - '!', 'l' - '!'}));
}

TEST(BpeTokenizer, BeginAndEndComeFromTheConfig) {
  const std::string config =
      R"({"bos_token": {"content": "<|end|>", "lstrip": false}, "eos_token": "<|end|>", "model_max_length": 9})";
  const auto tokenizer = bpe(tiny_bytes(), config, 300);
  EXPECT_EQ(tokenizer->begin(), 263);
  EXPECT_EQ(tokenizer->end(), 263);
  EXPECT_FALSE(tokenizer->begins_texts());
  EXPECT_EQ(tokenizer->vocabulary(), 300);  // as many as the model has
  EXPECT_EQ(tokenizer->decode(Ids{299}), "");
  EXPECT_TRUE(bpe(tiny_bytes(), R"({"bos_token": "<|end|>", "add_bos_token": true})")->begins_texts());
  EXPECT_FALSE(bpe(tiny_marks(), R"({"add_bos_token": false})")->begins_texts());
}

TEST(BpeTokenizer, WhatIsNotSupportedIsRefusedByName) {
  const auto expect = [](const std::function<void(Json&)>& change, const std::string& message, Json json = tiny_bytes()) {
    change(json);
    const std::string said = refusal<FormatError>([&] { (void)bpe(json); });
    EXPECT_EQ(said.rfind("hf.json: ", 0), 0U) << said;
    EXPECT_NE(said.find(message), std::string::npos) << said;
  };
  expect([](Json& j) { j["extra"] = 1; }, "field \"extra\" is unknown");
  expect([](Json& j) { j["model"]["extra"] = 1; }, "field \"model.extra\" is unknown");
  expect([](Json& j) { j["model"]["type"] = "Unigram"; }, R"(field "model.type" is "Unigram", expected "BPE")");
  expect([](Json& j) { j["model"]["dropout"] = 0.1; }, "field \"model.dropout\" is set");
  expect([](Json& j) { j["normalizer"] = {{"type", "NFC"}}; }, R"(field "normalizer.type" is "NFC", which is not supported)");
  expect([](Json& j) { j["pre_tokenizer"]["type"] = "Whitespace"; }, R"(field "pre_tokenizer.type" is "Whitespace")");
  expect([](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; }, "field \"pre_tokenizer.add_prefix_space\" is true");
  expect([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, R"(field "decoder.type" is "WordPiece")");
  expect(
      [](Json& j) {
        j["post_processor"] = {{"type", "BertProcessing"}};
      },
      R"(field "post_processor.type" is "BertProcessing")");
  expect([](Json& j) { j["added_tokens"][0]["lstrip"] = true; }, "field \"added_tokens[0].lstrip\" is set");
  expect([](Json& j) { j["added_tokens"][0]["id"] = 5; }, "two pieces of id 5");
  expect([](Json& j) { j["model"]["merges"][0] = "h  e"; }, "without exactly one space at index 0");
  expect([](Json& j) { j["model"]["merges"][1] = "h zz"; }, R"(field "model.merges[1]" names piece "zz")");
  expect([](Json& j) { j["model"]["merges"][1] = "h o"; }, "merge 1 of 71 and 78 does not give a piece");
  expect([](Json& j) { j["model"]["merges"][1] = "h e"; }, "appears twice");
  expect([](Json& j) { j["model"]["vocab"].erase("!"); }, "has no piece for byte 0x21");
  expect([](Json& j) { j["model"]["vocab"]["zz"] = -1; }, "has id -1 for piece \"zz\"");
  expect([](Json& j) { j["model"]["byte_fallback"] = false; }, "field \"model.byte_fallback\" is false", tiny_marks());
  expect([](Json& j) { j["post_processor"]["single"].push_back(j["post_processor"]["single"][0]); }, "is an unsupported template",
         tiny_marks());
  const std::string said = refusal<FormatError>([] { (void)bpe(tiny_bytes(), "", 200); });
  EXPECT_NE(said.find("expected 0 to 199"), std::string::npos) << said;
}

TEST(ImportedTokenizers, ComeBackFromTheirDirectoryAsTheyWere) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(scored(tok_bin(scored_pieces({" ", "a", "b", " a", "ab"}))));
  tokenizers.push_back(bpe(tiny_bytes()));
  tokenizers.push_back(bpe(tiny_marks(), "", 300));
  for (const auto& tokenizer : tokenizers) {
    const TemporaryDirectory directory("tokenizer_imported_test");
    tokenizer->save(directory.path());
    const auto loaded = load_tokenizer(directory.path());
    EXPECT_EQ(loaded->kind(), tokenizer->kind());
    EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
    EXPECT_EQ(loaded->vocabulary(), tokenizer->vocabulary());
    EXPECT_EQ(loaded->begin(), tokenizer->begin());
    EXPECT_EQ(loaded->end(), tokenizer->end());
    EXPECT_EQ(loaded->begins_texts(), tokenizer->begins_texts());
    for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(loaded->encode(any_text(seed)), tokenizer->encode(any_text(seed)));
  }
}

TEST(ImportedTokenizers, BrokenFilesOfOursAreRefusedByField) {
  const auto refused = [](const std::string& json) {
    return refusal<FormatError>([&] { (void)tokenizer_from_json(json, "model"); });
  };
  EXPECT_NE(refused(R"({"kind":"scored","version":1,"pieces":["a","b"],"scores":[0,0]})").find("\"pieces\" has 2 entries"),
            std::string::npos);
  EXPECT_NE(refused(R"({"kind":"scored","version":1,"pieces":["a","b","c"],"scores":[0,0]})").find("\"scores\" has 2 entries"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"kind":"scored","version":1,"pieces":["a","b","c"],"scores":[0,0,1e300]})").find("\"scores\" holds 1e+300"),
      std::string::npos);
  EXPECT_NE(refused(R"({"kind":"bpe","version":1,"form":"letters"})").find("\"form\" is unknown, expected one of bytes, marks"),
            std::string::npos);
}

// The published tokenizer of stories260K, where it is at hand; the ids are those of
// scripts/stories_reference.py stories260K.bin tok512.bin.
TEST(ImportedTokenizers, Stories260kSpellsItsOwnPrompt) {
  const char* data = std::getenv("RAFFIA_SHARED_DATA");
  if (data == nullptr) GTEST_SKIP() << "RAFFIA_SHARED_DATA is not set, expected the directory that contains stories260K";
  const auto tokenizer = scored(read_file(std::filesystem::path(data) / "stories260K" / "tok512.bin"));
  EXPECT_EQ(tokenizer->encode("Once upon a time"), (Ids{403, 407, 261, 378}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 403, 407, 261, 378, 432, 383, 286}), "Once upon a time, there was");
}

}  // namespace
}  // namespace raffia::internal
