#include <gtest/gtest.h>

#include "golden.h"
#include "raffia/error.h"
#include "raffia/session.h"

namespace raffia::internal {
namespace {

// As many ids as the golden model; id n writes a text of its own choice.
class ListTokenizer : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::string kind() const override { return "list"; }
  int64_t vocabulary() const override { return static_cast<int64_t>(pieces_.size()); }
  std::vector<int32_t> encode(std::string_view) const override { return {4}; }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += pieces_[static_cast<size_t>(id)];
    return text;
  }
  void save(const std::filesystem::path&) const override {}
  uint64_t fingerprint() const override { return 1; }

 private:
  std::vector<std::string> pieces_;
};

class Generate : public testing::Test {
 protected:
  // A session whose n-th choice writes texts[n % size]: pieces are dealt out to the ids that the model chooses.
  Session session_with(const std::vector<std::string>& texts, int count) {
    const int64_t vocabulary = golden_model("lm-gate")->config().vocabulary;
    Session probe(golden_model("lm-gate"), {.sampling = {.temperature = 3, .seed = 11}});
    std::vector<std::string> pieces(static_cast<size_t>(vocabulary), "?");
    probe.step(4);
    pieces[4] = "";
    for (int i = 0, next = 0; i < count; ++i) {
      const int32_t id = probe.sample();
      if (pieces[static_cast<size_t>(id)] == "?")
        pieces[static_cast<size_t>(id)] = texts[static_cast<size_t>(next++) % texts.size()];
      chosen_.push_back(id);
      expected_ += pieces[static_cast<size_t>(id)];
      probe.step(id);
    }
    Session session(golden_model("lm-gate", std::make_shared<ListTokenizer>(pieces)),
                    {.sampling = {.temperature = 3, .seed = 11}});
    session.step(4);
    return session;
  }

  std::vector<int32_t> chosen_;
  std::string expected_;
};

TEST_F(Generate, StreamsWhatItReturns) {
  Session session = session_with({"one ", "two ", "three "}, 30);
  std::string streamed;
  const Generated result = generate(session, {.tokens = 30, .ends = false}, [&](std::string_view text) {
    streamed += text;
    return true;
  });
  EXPECT_EQ(result.ids, chosen_);
  EXPECT_EQ(result.text, expected_);
  EXPECT_EQ(streamed, expected_);
  EXPECT_EQ(result.reason, Generated::Reason::length);
  EXPECT_EQ(result.log_probabilities.size(), 30U);
  EXPECT_EQ(session.position(), 31);
}

TEST_F(Generate, PiecesAreWholeCharacters) {
  Session session = session_with({"\xE2\x82", "\xAC", "a", "\xF0\x9F", "\x98\x80"}, 40);
  std::string streamed;
  const Generated result = generate(session, {.tokens = 40, .ends = false}, [&](std::string_view text) {
    // Nothing ends inside a character that began in it.
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      if (byte == 0xE2 && streamed.size() + text.size() < expected_.size()) {
        EXPECT_LT(i + 1, text.size());
      }
    }
    streamed += text;
    return true;
  });
  EXPECT_EQ(streamed, expected_);
  EXPECT_EQ(result.text, expected_);
}

TEST_F(Generate, StopStringsNeverShow) {
  Session session = session_with({"ab", "c", "d", "abx", "e"}, 40);
  const std::string stop = "cd";
  const size_t at = expected_.find(stop);
  ASSERT_NE(at, std::string::npos) << expected_;
  std::string streamed;
  const Generated result = generate(session, {.tokens = 40, .stop = {"zzz", stop}, .ends = false}, [&](std::string_view text) {
    streamed += text;
    return true;
  });
  EXPECT_EQ(result.reason, Generated::Reason::stop);
  EXPECT_EQ(result.text, expected_.substr(0, at));
  EXPECT_EQ(streamed, result.text);
}

TEST_F(Generate, EndsWhenTheListenerHasEnough) {
  Session session = session_with({"x"}, 30);
  int pieces = 0;
  const Generated result = generate(session, {.tokens = 30, .ends = false}, [&](std::string_view) { return ++pieces < 4; });
  EXPECT_EQ(result.ids.size(), 4U);
}

TEST_F(Generate, AsksTheListenerAfterEveryTokenWhateverItSays) {
  Session session = session_with({"x"}, 30);
  int asked = 0;
  // All of it could begin the stop, so there is no text until the end.
  const Generated result =
      generate(session, {.tokens = 30, .stop = {std::string(100, 'x')}, .ends = false}, [&](std::string_view text) {
        EXPECT_EQ(text, "");
        return ++asked < 7;
      });
  EXPECT_EQ(result.ids.size(), 7U);
}

TEST_F(Generate, BadOptionsAreRefused) {
  Session session = session_with({"x"}, 1);
  EXPECT_THROW(generate(session, {.tokens = -1}), InvalidArgument);
  EXPECT_THROW(generate(session, {.stop = {""}}), InvalidArgument);
  Session fresh(golden_model("lm-gate"));
  EXPECT_THROW(generate(fresh, {}), InvalidArgument);
}

}  // namespace
}  // namespace raffia::internal
