// raffia generate --interactive: through a pipe, and on a terminal.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/model_case.h"
#include "cli/terminal.h"

namespace {

class Conversation : public ModelCommand {
 protected:
  Result talk(const std::string& flags, const std::string& lines) const {
    directory_.write("lines", lines);
    return raffia("generate " + model("lm-gate") + " --interactive " + flags, "cat " + file("lines") + " |");
  }

  // On a terminal. Answers have `tokens` tokens: no greedy draw is "~".
  std::vector<std::string> at_terminal(const std::string& tokens) const {
    model("lm-gate");
    return {"generate",
            (directory_.path() / "lm-gate").string(),
            "--interactive",
            "--tokens",
            tokens,
            "--stop",
            "~",
            "--greedy",
            "--threads",
            "1",
            "--state-out",
            (directory_.path() / "left").string()};
  }
};

TEST_F(Conversation, EachLineIsAnsweredByOneLine) {
  const Result result = talk("--seed 3", "abc\nabc abc\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2) << result.out;
  EXPECT_EQ(result.err, "");
  // The first answer is what generate writes after that line.
  const Result single = raffia("generate " + model("lm-gate") + " --seed 3 --stop '\n'", R"(printf 'abc\n' |)");
  EXPECT_EQ(result.out.substr(0, result.out.find('\n')), single.out);
}

TEST_F(Conversation, CharactersThatTheVocabularyDoesNotKnowAreToldAfterTheirLine) {
  const Result result = talk("--greedy --tokens 3", "axbyx\nabc\naX\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err,
            "3 characters are not in the vocabulary and were read as unknown tokens: \"x\", \"y\"\n"
            "1 character is not in the vocabulary and was read as an unknown token: \"X\"\n");
}

TEST_F(Conversation, AnUnfinishedLineIsGoneOnWithin) {
  const Result result = talk("--seed 3 --tokens 20", "abc\\\n");
  const Result single = raffia("generate " + model("lm-gate") + " --seed 3 --tokens 20 --stop '\n' --prompt abc");
  EXPECT_EQ(result.out, single.out + "\n");
}

TEST_F(Conversation, WhatIsForgottenHasNeverBeen) {
  const std::string flags = "--greedy --tokens 20 --stop '~' --snapshot-every 16";
  const Result plain = talk(flags, "abc\nfed\n");
  const Result first = talk(flags, "abc\n");
  const Result taken_back = talk(flags, "abc\ncab cab\n/back\nfed\n");
  ASSERT_TRUE(plain.out.starts_with(first.out)) << plain.out;
  EXPECT_TRUE(taken_back.out.ends_with(plain.out.substr(first.out.size()))) << plain.out << "-----\n" << taken_back.out;
  EXPECT_NE(taken_back.err.find("tokens; position "), std::string::npos) << taken_back.err;
}

TEST_F(Conversation, StatesAreSavedAndLoaded) {
  const std::string saved = (directory_.path() / "saved").string();
  const Result first =
      talk("--temperature 1 --seed 3 --tokens 30 --state-out " + file("left"), "abc\n/save " + saved + "\ndef\n");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Result second = talk("--tokens 30", "/load " + saved + "\ndef\n");
  EXPECT_TRUE(first.out.ends_with(second.out)) << first.out << "\n-----\n" << second.out;
  EXPECT_FALSE(second.out.empty());
  EXPECT_EQ(raffia("state restore " + model("lm-gate") + " " + file("left") + " --check").exit_code, 0);
}

TEST_F(Conversation, AStateNeverReplacesAFileOfTheModel) {
  (void)model("lm-gate");
  const std::filesystem::path weights = directory_.path() / "lm-gate" / "model.safetensors";
  const std::string before = contents(weights);
  const Result result = talk("--tokens 5", "abc\n/save " + weights.string() + "\nabc\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("model.safetensors: is a file of a model"), std::string::npos) << result.err;
  EXPECT_EQ(contents(weights), before);
}

TEST_F(Conversation, WrongCommandsAreAnsweredAndNotTheEnd) {
  const Result result =
      talk("--tokens 5", "/frobnicate\n/back x\n/back 99999\n/load missing\n/seed\n/temperature -1\n/save\n/help\n/info\nabc\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* said :
       {"/frobnicate is not a command", "/back: 'x' is not a positive integer", "missing", "/seed needs a number",
        "/temperature: '-1' is not a number from 0", "/save needs the name of a file", "/back N", "0 tokens read"})
    EXPECT_NE(result.err.find(said), std::string::npos) << said << " is not in: " << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
}

TEST_F(Conversation, WhatAMessageRepeatsControlsNoTerminal) {
  const Result result = talk("--tokens 5",
                             "/load mis\x1b[2Jsing\n/\x1b]0;title\x07\n/back \x1b[2J\n/load \xc2\x9b"
                             "2J\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* said :
       {R"(mis\x1b[2Jsing: )", R"(/\x1b]0;title\x07 is not a command)", R"(/back: '\x1b[2J' is not)", R"(\xc2\x9b2J: )"})
    EXPECT_NE(result.err.find(said), std::string::npos) << said << " is not in: " << result.err;
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
}

TEST_F(Conversation, QuitAndExitLeaveAndWriteTheState) {
  for (const std::string command : {"/quit", "/exit"}) {
    const Result result = talk("--tokens 5 --state-out " + file("left"), "abc\n" + command + "\nabc\n");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 1) << result.out;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(raffia("state info " + file("left")).exit_code, 0);
    std::filesystem::remove(directory_.path() / "left");
  }
}

TEST_F(Conversation, SeedAndTemperatureChangeTheDraws) {
  const Result result = talk("--seed 1 --tokens 30", "/seed 3\n/temperature 0.5\nabc\n");
  EXPECT_EQ(result.out, talk("--seed 3 --temperature 0.5 --tokens 30", "abc\n").out);
}

TEST_F(Conversation, CtrlCEndsAnAnswerAndALineAndCtrlDTheConversation) {
  Terminal terminal(at_terminal("100000000"));
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("abc\r");
  ASSERT_TRUE(terminal.await("abc\r\n")) << terminal.screen();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(terminal.await("\u00e9")) << terminal.screen();  // it is writing
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("not sent");
  ASSERT_TRUE(terminal.await("not sent")) << terminal.screen();
  terminal.type("\x03");
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("\x03");  // and at an empty line there is nothing to end
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("/info\r");
  ASSERT_TRUE(terminal.await("tokens read")) << terminal.screen();
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("\x04");
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.screen();
  EXPECT_EQ(raffia("state restore " + model("lm-gate") + " " + file("left") + " --check").exit_code, 0);
}

// Whether they come during the answer or just after it.
TEST_F(Conversation, KeysTypedAheadAreHeededInTheirTurn) {
  Terminal terminal(at_terminal("1000"));
  ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
  terminal.type("abc\r");
  ASSERT_TRUE(terminal.await("\u00e9")) << terminal.screen();
  terminal.type("/info\r\x04");
  EXPECT_EQ(terminal.exit_code(), 0) << terminal.screen();
  EXPECT_NE(terminal.screen().find("1,004 tokens read"), std::string::npos) << terminal.screen();
}

TEST_F(Conversation, SigtermAndSighupLeaveAndKeepTheState) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    std::filesystem::remove(file("left"));
    Terminal terminal(at_terminal("20"));
    ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
    terminal.type("abc\r");
    ASSERT_TRUE(terminal.await("> ")) << terminal.screen();
    terminal.send(signal);
    EXPECT_EQ(terminal.exit_code(), 128 + signal) << terminal.screen();
    EXPECT_EQ(raffia("state restore " + model("lm-gate") + " " + file("left") + " --check").exit_code, 0);
  }
}

}  // namespace
