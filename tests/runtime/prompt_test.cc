// Text that sessions read: every vocabulary begins and continues a text as its models have learned it.
#include "runtime/prompt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/imports/hf_tokenizer.h"
#include "io/tokenizers/tokenizer_scored.h"
#include "raffia/error.h"
#include "raffia/session.h"
#include "runtime/random_weights.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

using Ids = std::vector<int32_t>;

Ids operator+(Ids left, const Ids& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::shared_ptr<const Tokenizer> learned(const std::string& spec) {
  const std::string text = "a band on the run: a long time, \u00e9t\u00e9 \u20ac\n and a band\n\tlong long time \U0001F600\n";
  const std::string_view texts[] = {text};
  return train_tokenizer(parse_tokenizer_spec(spec), texts);
}

std::shared_ptr<const Tokenizer> scored() {
  const std::string bytes = tok_bin(scored_pieces({" ", "a", "b", "ab", " a", " ab"}));
  return make_scored_tokenizer(parse_scored_pieces(std::as_bytes(std::span(bytes)), "tok.bin"));
}

std::shared_ptr<const Tokenizer> bpe(const nlohmann::ordered_json& json) {
  return make_bpe_tokenizer(
      bpe_from_hf({.tokenizer = json.dump(), .tokenizer_config = "", .where = "hf.json", .where_config = "hf_config.json"}, 0),
      "hf.json");
}

std::shared_ptr<const Tokenizer> marks() {
  const std::string mark = "\xE2\x96\x81";
  return bpe(hf_marks({mark, "a", "b", "\n"}, {{"a", "b"}, {mark, "a"}}));
}

std::vector<std::shared_ptr<const Tokenizer>> all_tokenizers() {
  return {
      learned("byte"), learned("char"), learned("word"), learned("sp:300"), scored(), marks(), bpe(hf_byte_level({{"a", "b"}}))};
}

std::shared_ptr<const Model> model_of(std::shared_ptr<const Tokenizer> tokenizer) {
  const ModelConfig config{
      .vocabulary = tokenizer->vocabulary(), .width = 32, .heads = 2, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
  return Model::over(config, runtime::random_weights(config, WeightType::f32, 3), std::move(tokenizer), "random");
}

std::string long_text() {
  std::string text;
  while (text.size() < 6000) text += "a band ab on the run: long \u00e9t\u00e9 time,\n ab a\tlong \U0001F600 time\n";
  return text;
}

// What is saved of two sessions has the same bytes if they have read the same tokens in the same pieces.
TEST(Prompt, TextInPartsOfAnySizeGivesTheBitsOfTheWhole) {
  const std::string text = long_text();
  for (const auto& tokenizer : all_tokenizers()) {
    const auto model = model_of(tokenizer);
    Session whole(model);
    whole.prefill(text);
    for (const size_t part : {7, 1000, 10000}) {
      Session session(model);
      runtime::Prompt prompt(session);
      for (size_t at = 0; at < text.size(); at += part) {
        prompt.add(std::string_view(text).substr(at, part));
        prompt.read();
      }
      prompt.end();
      prompt.read();
      EXPECT_EQ(session.to_bytes(), whole.to_bytes()) << tokenizer->kind() << " in parts of " << part;
    }
  }
}

TEST(Prompt, StopsAfterABlockAndGoesOnFromThere) {
  const auto model = model_of(learned("byte"));
  const std::string text = long_text();
  Session whole(model), session(model);
  whole.prefill(text);
  runtime::Prompt prompt(session);
  prompt.add(text);
  prompt.end();
  double bytes = 0;
  prompt.read([&](double more) {
    bytes += more;
    return false;
  });
  EXPECT_EQ(session.position(), 4 * Session::kChunk);
  EXPECT_NEAR(bytes, 4.0 * Session::kChunk, 1e-6);
  prompt.read([&](double more) {
    bytes += more;
    return true;
  });
  EXPECT_NEAR(bytes, static_cast<double>(text.size()), 1e-6);
  EXPECT_EQ(session.to_bytes(), whole.to_bytes());
}

TEST(SessionPrefill, ATextBeginsAsTheVocabularyBeginsTextsAndContinuesWithoutThat) {
  for (const auto& tokenizer : all_tokenizers()) {
    const Ids begin = tokenizer->begins_texts() ? Ids{tokenizer->begin()} : Ids{};
    const Ids first = begin + tokenizer->encode("ab a"), rest = tokenizer->encode_rest("b ab");
    Session text(model_of(tokenizer)), ids(text);
    text.prefill("ab a");
    ids.prefill(first);
    EXPECT_EQ(text.to_bytes(), ids.to_bytes()) << tokenizer->kind();
    text.prefill("b ab");
    ids.prefill(rest);
    EXPECT_EQ(text.to_bytes(), ids.to_bytes()) << tokenizer->kind();
    text.prefill("");
    EXPECT_EQ(text.to_bytes(), ids.to_bytes()) << tokenizer->kind();
    EXPECT_EQ(Ids(text.recent().begin(), text.recent().end()), first + rest) << tokenizer->kind();
  }
}

TEST(SessionPrefill, TokensOfImportedVocabulariesAreThoseOfTheirPrograms) {
  Session session(model_of(scored()));
  session.prefill("ab");
  EXPECT_EQ(Ids(session.recent().begin(), session.recent().end()), (Ids{1, 264}));  // begin, " ab"
  session.prefill("ab");
  EXPECT_EQ(Ids(session.recent().begin(), session.recent().end()), (Ids{1, 264, 262}));  // "ab"
  EXPECT_EQ(session.model().tokenizer().decode(session.recent()), "abab");
}

TEST(SessionPrefill, AnEmptyTextIsTheOpeningOfANewOne) {
  for (const auto& tokenizer : all_tokenizers()) {
    Session session(model_of(tokenizer));
    session.prefill("");
    EXPECT_EQ(Ids(session.recent().begin(), session.recent().end()), runtime::opening_of(*tokenizer)) << tokenizer->kind();
    EXPECT_NO_THROW(generate(session, {.tokens = 3}));
  }
}

TEST(SessionPrefill, CopiesAndRestoredSessionsContinueATextAsTheOriginal) {
  for (const auto& tokenizer : all_tokenizers()) {
    const auto model = model_of(tokenizer);
    Session original(model, {.snapshot_every = 4});
    original.prefill("ab a");
    const int64_t before = original.position();
    Session copy = original, restored = Session::from_bytes(model, original.to_bytes(), {}, "memory");
    for (Session* session : {&original, &copy, &restored}) session->prefill("b ab");
    EXPECT_EQ(copy.to_bytes(), original.to_bytes()) << tokenizer->kind();
    EXPECT_EQ(restored.to_bytes(), original.to_bytes()) << tokenizer->kind();
    copy.rollback(copy.position() - before);
    copy.prefill("b ab");
    EXPECT_EQ(copy.to_bytes(), original.to_bytes()) << tokenizer->kind();
    // Back at position 0 a text begins again.
    copy.rollback(copy.position());
    copy.prefill("ab a");
    copy.prefill("b ab");
    EXPECT_EQ(copy.to_bytes(), original.to_bytes()) << tokenizer->kind();
  }
}

TEST(SessionPrefill, ACacheKnowsTexts) {
  const auto model = model_of(scored());
  PrefixCache cache(model, {});
  const std::string text = long_text();
  Session first(model), second(model);
  EXPECT_EQ(first.prefill(text, &cache), 0);
  EXPECT_EQ(second.prefill(text, &cache), first.position() / Session::kChunk * Session::kChunk);
  EXPECT_EQ(second.to_bytes(), first.to_bytes());
}

TEST(SessionPrefill, AModelWithoutATokenizerReadsNoText) {
  const ModelConfig config{.vocabulary = 40, .width = 32, .heads = 2, .layers = 2, .estimators = {parse_estimator("rfa_gate")}};
  Session session(Model::over(config, runtime::random_weights(config, WeightType::f32, 3), nullptr, "random"));
  EXPECT_THROW(session.prefill("a"), InvalidArgument);
  EXPECT_EQ(session.position(), 0);
}

}  // namespace
}  // namespace raffia::internal
