// raffia generate and raffia state from outside.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/model_case.h"
#include "raffia/lara.h"
#include "raffia/memory.h"
#include "raffia/state.h"
#include "raffia/window_state.h"

namespace {

using nlohmann::json;

class Generate : public ModelCommand {
 protected:
  std::string long_prompt() const {
    std::string text;
    for (size_t i = 0; i < 3000; ++i)
      text += i % 50 == 49 ? "\n" : i % 7 == 3 ? "\u00e9" : std::string(1, "abc defghi"[i * i % 10]);
    return text;
  }
};

TEST_F(Generate, StdoutHoldsTheContinuationAlone) {
  const std::string arguments = "generate " + model("lm-gate") + " --prompt 'abc' --tokens 30 --seed 5";
  const json expected = json_of(arguments);
  ASSERT_TRUE(expected.is_object());
  EXPECT_EQ(expected["prompt_tokens"], 3);
  EXPECT_EQ(expected["position"], 3 + expected["ids"].size());
  EXPECT_EQ(expected["ids"].size(), expected["log_probabilities"].size());
  EXPECT_EQ(expected["fingerprint"].get<std::string>().size(), 16U);
  for (const char* field : {"prefill_seconds", "decode_seconds", "tokens_per_second", "state_bytes", "peak_rss_bytes"})
    EXPECT_GT(expected[field].get<double>(), 0) << field;
  for (const json& each : expected["log_probabilities"]) EXPECT_LE(each.get<double>(), 0);

  const Result plain = raffia(arguments);
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_EQ(plain.out, expected["text"].get<std::string>());
  EXPECT_NE(plain.err.find("3 tokens read"), std::string::npos) << plain.err;
  EXPECT_EQ(raffia(arguments + " --echo").out, "abc" + plain.out);
}

TEST_F(Generate, TheSeedDecidesWhatIsDrawnAndThreadsDoNot) {
  const std::string arguments = "generate " + model("lm-hybrid") + " --prompt 'abc' --tokens 60";
  const std::string text = raffia(arguments + " --seed 5").out;
  EXPECT_EQ(raffia(arguments + " --seed 5 --threads 2").out, text);
  EXPECT_NE(raffia(arguments + " --seed 6").out, text);
  EXPECT_EQ(raffia(arguments + " --greedy --seed 5").out, raffia(arguments + " --temperature 0 --seed 6").out);
  EXPECT_EQ(raffia(arguments + " --top-k 1 --seed 5").out, raffia(arguments + " --greedy").out);
}

TEST_F(Generate, APromptIsTheSameFromAFlagAFileAndAPipeHoweverItIsCut) {
  const std::string prompt = long_prompt();
  directory_.write("prompt", prompt);
  directory_.write("first", prompt.substr(0, 1234));
  directory_.write("second", prompt.substr(1234));
  const std::string arguments = "generate " + model("lm-gate") + " --tokens 5 --state-out ";
  ASSERT_EQ(raffia(arguments + file("flag.state") + " --prompt \"$(cat " + file("prompt") + "; printf .)\"").exit_code, 0);
  ASSERT_EQ(raffia(arguments + file("file.state") + " --prompt-file " + file("prompt")).exit_code, 0);
  ASSERT_EQ(
      raffia(arguments + file("pipe.state"), "(cat " + file("first") + "; sleep 0.1; cat " + file("second") + ") |").exit_code,
      0);
  EXPECT_EQ(contents(directory_.path() / "file.state"), contents(directory_.path() / "pipe.state"));
  // The dot that keeps the shell from dropping the last line end is one token more.
  const json flag = json_of("state info " + file("flag.state")), pipe = json_of("state info " + file("pipe.state"));
  EXPECT_EQ(flag["position"].get<int64_t>(), pipe["position"].get<int64_t>() + 1);
}

TEST_F(Generate, TwoRunsOverAStateEqualOne) {
  for (const std::string golden : {"lm-gate", "lm-eva", "lm-softmax"}) {
    const std::string base = "generate " + model(golden) + " --temperature 0.9 --seed 3 ";
    const json whole = json_of(base + "--prompt 'abcabc' --tokens 40");
    const json first = json_of(base + "--prompt 'abcabc' --tokens 15 --state-out " + file("s"));
    const json second =
        json_of("generate " + model(golden) + " --tokens 25 --state-in " + file("s"));  // sampling is in the state
    json ids = first["ids"];
    ids.insert(ids.end(), second["ids"].begin(), second["ids"].end());
    if (first["reason"] == "length") {
      EXPECT_EQ(ids, whole["ids"]) << golden;
    }
    EXPECT_EQ(second["prompt_tokens"], 0);
    // A prompt goes on from the state, too.
    EXPECT_EQ(json_of("generate " + model(golden) + " --tokens 1 --prompt ab --state-in " + file("s"))["prompt_tokens"], 2);
  }
}

TEST_F(Generate, FlagsChangeTheSamplingOfAState) {
  const std::string base = "generate " + model("lm-gate");
  ASSERT_EQ(raffia(base + " --prompt abc --tokens 1 --top-k 3 --seed 9 --state-out " + file("a")).exit_code, 0);
  ASSERT_EQ(raffia(base + " --tokens 1 --temperature 0.5 --state-in " + file("a") + " --state-out " + file("b")).exit_code, 0);
  const json sampling = json_of("state info " + file("b"))["sampling"];
  EXPECT_EQ(sampling["top_k"], 3);
  EXPECT_EQ(sampling["seed"], 9);
  EXPECT_EQ(sampling["temperature"], 0.5);
}

TEST_F(Generate, TextEndsBeforeTheFirstStop) {
  const std::string base = "generate " + model("lm-gate") + " --prompt abc --tokens 200 --seed 2";
  const std::string text = raffia(base).out;
  ASSERT_GT(text.size(), 20U);
  size_t begin = 10;
  while ((text[begin] & 0xC0) == 0x80) ++begin;  // where a character begins
  const std::string stop = text.substr(begin, text[begin] & 0x80 ? 2 : 1);
  const size_t end = text.find(stop);
  for (const std::string& flags : {" --stop '" + stop + "'", " --stop '~' --stop '" + stop + "'"}) {
    const json found = json_of(base + flags);
    EXPECT_EQ(found["text"], text.substr(0, end)) << flags;
    EXPECT_EQ(found["reason"], "stop");
    EXPECT_EQ(raffia(base + flags).out, text.substr(0, end)) << flags;
  }
}

TEST_F(Generate, LogProbabilitiesAreALineATokenOnStderr) {
  const std::string base = "generate " + model("lm-gate") + " --prompt abc --tokens 7 --greedy";
  const size_t tokens = json_of(base)["ids"].size();
  const Result result = raffia(base + " --logprobs");
  EXPECT_EQ(result.out, raffia(base).out);
  EXPECT_EQ(static_cast<size_t>(std::count(result.err.begin(), result.err.end(), '\n')), tokens + 1) << result.err;
}

TEST_F(Generate, OneTokenIsNotSeveral) {
  const Result result = raffia("generate " + model("lm-gate") + " --tokens 1");
  EXPECT_TRUE(result.err.starts_with("1 token read in ")) << result.err;
  EXPECT_NE(result.err.find(", 1 token written in "), std::string::npos) << result.err;
}

TEST_F(Generate, AnEmptyPromptBeginsAText) {
  EXPECT_EQ(json_of("generate " + model("lm-gate") + " --tokens 3")["prompt_tokens"], 1);
  const std::string greedy = "generate " + model("lm-gate") + " --greedy --tokens 9 ";
  EXPECT_EQ(raffia(greedy + "--prompt ''").out, raffia(greedy, R"(printf '\n' |)").out);  // as after the end of a line
}

TEST_F(Generate, SignalsWriteTheStateAndExitAsShellsCount) {
  for (const auto& [signal, code] : {std::pair<std::string, int>{"INT", 130}, {"HUP", 129}, {"TERM", 143}}) {
    // A generation without end: the likeliest token is never the one that ends a text. The signal comes once there is text.
    const auto script = directory_.write(
        "script",
        "cd '" + directory_.path().string() + "'; rm -f text s\n'" + raffia::internal::raffia_command() + "' generate " +
            model("lm-gate") + " --prompt abc --greedy --tokens 100000000 --threads 1 --state-out s >text 2>err & p=$!\n" +
            "i=0; while [ ! -s text ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i + 1)); done\nkill -" + signal + " $p; wait $p\n");
    const int status = std::system(("bash '" + script.string() + "'").c_str());
    const std::string said = contents(directory_.path() / "err");
    EXPECT_EQ(WEXITSTATUS(status), code) << said;
    EXPECT_NE(said.find("the state was saved"), std::string::npos) << said;
    EXPECT_EQ(raffia("state restore " + model("lm-gate") + " " + file("s") + " --check").exit_code, 0);
  }
}

TEST_F(Generate, TheStateIsWrittenWhenNobodyReadsOn) {
  const std::string lm = model("lm-gate");
  const auto script =
      directory_.write("script", "cd '" + directory_.path().string() + "'; set -o pipefail; '" +
                                     raffia::internal::raffia_command() + "' generate " + lm +
                                     " --prompt abc --greedy --tokens 100000000 --threads 1 --state-out s 2>err | head -c 10\n");
  EXPECT_EQ(WEXITSTATUS(std::system(("bash '" + script.string() + "' >/dev/null").c_str())), 1);
  EXPECT_NE(contents(directory_.path() / "err").find("stdout could not be written"), std::string::npos);
  EXPECT_EQ(raffia("state restore " + lm + " " + file("s") + " --check").exit_code, 0);
}

TEST_F(Generate, StatesReplaceFilesAndNothingElse) {
  namespace fs = std::filesystem;
  const std::string arguments = "generate " + model("lm-gate") + " --prompt abc --tokens 3 --state-out ";
  const fs::path kept = directory_.write("kept", "old");
  fs::permissions(kept, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("kept", directory_.path() / "link");
  EXPECT_EQ(raffia(arguments + file("link")).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(directory_.path() / "link"));
  EXPECT_EQ(fs::status(kept).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(raffia("state info " + file("kept")).exit_code, 0);
  ASSERT_EQ(std::system(("mkfifo " + file("pipe")).c_str()), 0);
  expect_refused(1, arguments + file("pipe"), "pipe: cannot write: not a regular file");
  EXPECT_TRUE(fs::is_fifo(directory_.path() / "pipe"));
}

TEST_F(Generate, AStateNeverReplacesTheModelOrThePrompt) {
  namespace fs = std::filesystem;
  const std::string lm = model("lm-gate");
  const fs::path directory = directory_.path() / "lm-gate";
  fs::create_symlink(directory / "model.safetensors", directory_.path() / "link");
  directory_.write("prompt", "abc");
  const std::string weights = contents(directory / "model.safetensors");
  for (const std::string name : {"lm-gate/model.safetensors", "lm-gate/config.json", "lm-gate/classes.txt", "link"}) {
    expect_refused(2, "generate " + lm + " --prompt abc --tokens 3 --state-out " + file(name), "is a file of a model");
    expect_refused(2, "state save " + lm + " " + file(name) + " --prompt abc", "is a file of a model");
  }
  // Nor another model.
  model("lm-softmax");
  const std::string others = contents(directory_.path() / "lm-softmax" / "model.safetensors");
  fs::create_symlink(directory_.path() / "lm-softmax" / "model.safetensors", directory_.path() / "link-to-other");
  for (const std::string name : {"lm-softmax/model.safetensors", "lm-softmax/config.json", "link-to-other"}) {
    expect_refused(2, "generate " + lm + " --prompt abc --tokens 3 --state-out " + file(name), "is a file of a model");
    expect_refused(2, "state save " + lm + " " + file(name) + " --prompt abc", "is a file of a model");
  }
  EXPECT_EQ(contents(directory_.path() / "lm-softmax" / "model.safetensors"), others);
  expect_refused(2, "state save " + lm + " " + file("prompt") + " --prompt-file " + file("prompt"), "is the prompt");
  EXPECT_EQ(contents(directory / "model.safetensors"), weights);
  EXPECT_EQ(contents(directory_.path() / "prompt"), "abc");
  // A state in the directory, and a state over a state, are fine.
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(raffia("state save " + lm + " " + file("lm-gate/story.state") + " --prompt abc").exit_code, 0);
  }
}

TEST_F(Generate, CompressedPromptsAreWhatTheyWereBefore) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += i % 7 == 0 ? "abc \n" : "hi ";
  directory_.write("plain", text);
  ASSERT_EQ(std::system(("cd '" + directory_.path().string() + "' && gzip -k plain && xz -k plain").c_str()), 0);
  const std::string arguments = "generate " + model("lm-gate") + " --greedy --tokens 9 --prompt-file ";
  const json expected = json_of(arguments + file("plain"));
  for (const std::string name : {"plain.gz", "plain.xz"}) {
    const json found = json_of(arguments + file(name));
    EXPECT_EQ(found["ids"], expected["ids"]) << name;
    EXPECT_EQ(found["prompt_tokens"], expected["prompt_tokens"]) << name;
    EXPECT_EQ(json_of(arguments + "-", "cat " + file(name) + " |")["ids"], expected["ids"]) << name;
    EXPECT_EQ(json_of("state save " + model("lm-gate") + " " + file("s") + " --prompt-file " + file(name))["position"],
              expected["prompt_tokens"]);
  }
  const std::string half = contents(directory_.path() / "plain.gz").substr(0, 40);
  directory_.write("cut.gz", half);
  const Result cut = raffia(arguments + file("cut.gz"));
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_NE(cut.err.find("cut.gz: is not valid gzip at byte 40: it is truncated"), std::string::npos) << cut.err;
}

TEST_F(Generate, CharactersThatTheVocabularyDoesNotKnowAreToldOnce) {
  const Result result = raffia("generate " + model("lm-gate") + " --greedy --tokens 3 --prompt 'axbyxz'");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.rfind("4 characters are not in the vocabulary and were read as unknown tokens: \"x\", \"y\", \"z\"\n", 0),
            0U)
      << result.err;
  EXPECT_EQ(raffia("generate " + model("lm-gate") + " --greedy --tokens 3 --prompt abc").err.find("vocabulary"),
            std::string::npos);
  const Result saved = raffia("state save " + model("lm-gate") + " " + file("s") + " --prompt 'abX'");
  EXPECT_EQ(saved.err, "1 character is not in the vocabulary and was read as an unknown token: \"X\"\n");
}

TEST_F(Generate, WeightsThatAreCopiedGiveTheSameText) {
  const std::string arguments = "generate " + model("lm-gate") + " --prompt abc --greedy --tokens 20";
  EXPECT_EQ(raffia(arguments + " --no-mmap").out, raffia(arguments).out);
}

TEST_F(Generate, WithoutStdinThePromptIsEmpty) {
  const std::string arguments = "generate " + model("lm-gate") + " --greedy --tokens 9";
  EXPECT_EQ(run_raffia(directory_.path(), arguments + " <&-", "").out, raffia(arguments).out);
}

TEST_F(Generate, TextsEndWhereTheModelHasNoMorePositions) {
  const std::string lm = model("lm-softmax-learned");
  const json config = json::parse(contents(directory_.path() / "lm-softmax-learned" / "config.json"));
  const std::string prompt(config["max_length"].get<size_t>(), 'a');
  const Result result = raffia("generate " + lm + " --prompt " + prompt + " --state-out " + file("full"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.err.find("Generation stopped"), std::string::npos) << result.err;
  EXPECT_EQ(json_of("generate " + lm + " --state-in " + file("full"))["reason"], "room");
  EXPECT_EQ(raffia("state restore " + lm + " " + file("full") + " --check").exit_code, 0);
}

TEST_F(Generate, WrongUseIsRefusedInOneLine) {
  const std::string lm = "generate " + model("lm-gate") + " ";
  expect_refused(2, "generate", "model is required");
  expect_refused(2, lm + "--frobnicate", "--frobnicate");
  expect_refused(2, lm + "--tokens 0", "--tokens: '0' is not a positive integer");
  expect_refused(2, lm + "--tokens x", "--tokens: 'x' is not a positive integer");
  expect_refused(2, lm + "--temperature -1", "--temperature: '-1' is not a number from 0");
  expect_refused(2, lm + "--temperature nan", "--temperature: 'nan' is not a number");
  expect_refused(2, lm + "--top-p 1.5", "--top-p: '1.5' is not a number from");
  expect_refused(2, lm + "--top-p 0", "--top-p: '0' is not a number from");
  expect_refused(2, lm + "--min-p 2", "--min-p: '2' is not a number from 0 to 1");
  expect_refused(2, lm + "--top-k -1", "--top-k: '-1' is not an integer of 0 or more");
  expect_refused(2, lm + "--repetition-penalty 0", "--repetition-penalty: '0'");
  expect_refused(2, lm + "--seed -3", "--seed: '-3' is not an integer from 0");
  expect_refused(2, lm + "--greedy --temperature 1", "--greedy");
  expect_refused(2, lm + "--prompt a --prompt-file b", "--prompt");
  expect_refused(2, lm + "--stop ''", "--stop");
  for (const std::string flag : {"--state-in", "--state-out", "--prompt-file"}) {
    expect_refused(2, lm + flag + " ''", flag + ": is empty, expected the name of a file");
  }
  expect_refused(2, lm + "--threads 100000", "--threads: '100000' is too large, expected at most 1024");
  expect_refused(2, lm + "--json --echo", "--json");
  expect_refused(2, lm + "--snapshot-every 4", "--interactive");
}

TEST_F(Generate, WhatCannotBeRunIsAFailureInOneLine) {
  const std::string lm = "generate " + model("lm-gate") + " ";
  expect_refused(1, "generate " + file("missing"), "missing");
  expect_refused(1, "generate " + model("classify-softmax") + " --prompt a", "is a model for classify, expected lm");
  expect_refused(1, "generate " + model("translate-gate") + " --prompt a", "expected lm (use raffia translate)");
  expect_refused(1, lm + "--prompt-file " + file("missing"), "missing: cannot open");
  expect_refused(1, lm + "--prompt-file " + file("."), "cannot read: Is a directory");
  expect_refused(1, lm + "--state-in " + file("missing"), "missing");
  expect_refused(1, lm + "--prompt a --state-out " + file("missing/s"), "missing/s: cannot write there: No such file");
  expect_refused(1, lm + "--prompt a --state-out " + file("."), "is a directory");

  model("lm-window");
  directory_.write("lm-window/model.safetensors",
                   contents(directory_.path() / "lm-window" / "model.safetensors").substr(0, 9000));
  expect_refused(1, "generate " + model("lm-window") + " --prompt a", "model.safetensors");
  directory_.write("lm-window/config.json", "{}");
  expect_refused(1, "generate " + model("lm-window") + " --prompt a", "config.json");
  model("lm-eva");
  directory_.write("lm-eva/tokenizer.json", R"({"kind": "char", "version": 1, "characters": "abc"})");
  expect_refused(1, "generate " + model("lm-eva") + " --prompt a", "vocabulary");
}

using State = Generate;

TEST_F(State, SaveIsWhatGenerateLeaves) {
  const json saved = json_of("state save " + model("lm-gate") + " " + file("s") + " --prompt abcdef --seed 4");
  EXPECT_EQ(saved["position"], 6);
  EXPECT_EQ(saved["prompt_tokens"], 6);
  EXPECT_EQ(saved["sampling"]["seed"], 4);
  const json info = json_of("state info " + file("s"));
  EXPECT_EQ(info["bytes"], std::filesystem::file_size(directory_.path() / "s"));
  EXPECT_EQ(info["fingerprint"], saved["fingerprint"]);
  EXPECT_EQ(info["vocabulary"], 16);
  EXPECT_EQ(info["memories"].size(), 2U);
  EXPECT_EQ(raffia("generate " + model("lm-gate") + " --state-in " + file("s") + " --tokens 20").out,
            raffia("generate " + model("lm-gate") + " --prompt abcdef --seed 4 --tokens 20").out);
  EXPECT_NE(raffia("state info " + file("s")).out.find("position     6\n"), std::string::npos)
      << raffia("state info " + file("s")).out;
}

TEST_F(State, InfoReadsWhatTheLibrarySaves) {
  raffia::State state(raffia::StateShape{.batch = 2, .heads = 3, .features = 4, .value_dim = 5});
  state.save(directory_.path() / "state");
  const json of_state = json_of("state info " + file("state"));
  EXPECT_EQ(of_state["image"], "state");
  EXPECT_EQ(of_state["bytes"], std::filesystem::file_size(directory_.path() / "state"));
  EXPECT_EQ(of_state["heads"], 3);
  EXPECT_EQ(of_state["value_dim"], 5);
  EXPECT_NE(raffia("state info " + file("state")).out.find("features     4\n"), std::string::npos);

  raffia::WindowState windows(raffia::causal_lara_state_shape(2, 4, 2, 8, 6, {.window = 8, .chunk = 4, .samples = 16}));
  windows.tokens(1) = 7;
  windows.save(directory_.path() / "windows");
  const json of_windows = json_of("state info " + file("windows"));
  EXPECT_EQ(of_windows["image"], "window state");
  EXPECT_EQ(of_windows["kind"], "lara");
  EXPECT_EQ(of_windows["window"], 8);
  EXPECT_EQ(of_windows["tokens"], (std::vector<int64_t>{0, 7}));

  raffia::KeyCache cache({.batch = 2, .heads = 2, .dim = 4, .value_dim = 3});
  cache.assign(1, 9, std::vector<float>(2 * 2 * 4, 0.5F), std::vector<float>(2 * 2 * 3, 0.25F));
  raffia::Memory(cache).save(directory_.path() / "cache");
  const json of_cache = json_of("state info " + file("cache"));
  EXPECT_EQ(of_cache["image"], "key cache");
  EXPECT_EQ(of_cache["bytes"], std::filesystem::file_size(directory_.path() / "cache"));
  EXPECT_EQ(of_cache["tokens"], (std::vector<int64_t>{0, 9}));
  EXPECT_EQ(of_cache["rows"], (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(of_cache["heads"], 2);
  EXPECT_EQ(of_cache["dim"], 4);
  EXPECT_EQ(of_cache["value_dim"], 3);
  expect_refused(1, "state restore " + model("lm-gate") + " " + file("cache"), "a key cache, not a session");

  for (const char* name : {"state", "windows", "cache"}) {
    directory_.write("cut", contents(directory_.path() / name).substr(0, 100));
    expect_refused(1, "state info " + file("cut"), "cut");
  }
}

TEST_F(State, InfoOfAPipeIsRefusedAndDoesNotWait) {
  ASSERT_EQ(::mkfifo((directory_.path() / "pipe").c_str(), 0600), 0);
  expect_refused(1, "state info " + file("pipe"), "pipe: cannot read: not a regular file", "timeout 20");
}

TEST_F(State, NamesThatAreNotUtf8AreReplacedInJson) {
  const auto expect_end = [](const json& name, const std::string& end) {
    EXPECT_TRUE(name.is_string() && name.get<std::string>().ends_with(end)) << name;
  };
  const std::string session = file("chat\xff"), quantized = file("int8\xff");
  expect_end(json_of("state save " + model("lm-gate") + " " + session + " --prompt ab")["file"], "/chat\ufffd");
  expect_end(json_of("state info " + session)["file"], "/chat\ufffd");
  expect_end(json_of("quantize " + model("lm-gate") + " " + quantized)["directory"], "/int8\ufffd");
  const json records = json_of("bench decode --depths 0 --tokens 2 --repeats 1 --model " + quantized);
  ASSERT_EQ(records.size(), 1U);
  expect_end(records[0]["model"], "int8\ufffd");
}

TEST_F(State, HasTheSameSizeAfterAHundredTokensAndAfterTenThousand) {
  directory_.write("long", long_prompt() + long_prompt() + long_prompt() + long_prompt());
  const std::string hundred(100, 'a');
  ASSERT_EQ(raffia("state save " + model("lm-gate") + " " + file("short.state") + " --prompt " + hundred).exit_code, 0);
  ASSERT_EQ(raffia("state save " + model("lm-gate") + " " + file("long.state") + " --prompt-file " + file("long")).exit_code, 0);
  EXPECT_EQ(std::filesystem::file_size(directory_.path() / "short.state"),
            std::filesystem::file_size(directory_.path() / "long.state"));
  EXPECT_EQ(json_of("state info " + file("long.state"))["position"], 12000);
}

TEST_F(State, RestoreChecksAgainstTheModel) {
  for (const std::string golden : {"lm-gate", "lm-hybrid", "lm-lara", "lm-softmax", "lm-window"}) {
    ASSERT_EQ(raffia("state save " + model(golden) + " " + file(golden + ".state") + " --prompt 'abc def'").exit_code, 0);
    const json found = json_of("state restore " + model(golden) + " " + file(golden + ".state") + " --check");
    EXPECT_EQ(found["position"], 7) << golden;
    EXPECT_GT(found["state_bytes"].get<int64_t>(), 0) << golden;
  }
  expect_refused(1, "state restore " + model("lm-hybrid") + " " + file("lm-gate.state"), "lm-gate.state");
  expect_refused(1, "generate " + model("lm-hybrid") + " --state-in " + file("lm-gate.state"), "lm-gate.state");
}

TEST_F(State, DamageIsAFailureInOneLine) {
  ASSERT_EQ(raffia("state save " + model("lm-gate") + " " + file("s") + " --prompt abc").exit_code, 0);
  const std::string bytes = contents(directory_.path() / "s");
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 4);
  directory_.write("flipped", flipped);
  directory_.write("cut", bytes.substr(0, bytes.size() - 10));
  directory_.write("text", "not a state at all");
  directory_.write("empty", "");
  for (const char* damaged : {"flipped", "cut", "text", "empty", "missing"}) {
    expect_refused(1, "state restore " + model("lm-gate") + " " + file(damaged), damaged);
    if (damaged != std::string("flipped")) expect_refused(1, "state info " + file(damaged), damaged);
  }
  expect_refused(2, "state info", "file is required");
  expect_refused(2, "state frobnicate", "unknown command 'frobnicate', expected one of info, save, restore");
  expect_refused(1, "state save " + model("classify-softmax") + " " + file("x") + " --prompt a", "is a model for classify");
  expect_refused(1, "state save " + model("lm-gate") + " " + file("missing/x") + " --prompt a", "cannot write there");
}

}  // namespace
