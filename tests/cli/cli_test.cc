// The built command from outside: what it prints, where, and how it exits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "support/paths.h"

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class Cli : public testing::Test {
 protected:
  Cli() : directory_(fs::temp_directory_path() / ("raffia_cli_" + std::to_string(getpid()))) {
    fs::create_directories(directory_);
  }
  ~Cli() override { fs::remove_all(directory_); }

  // `arguments` go through the shell; `environment` is put before the command.
  Result raffia(const std::string& arguments, const std::string& environment = "") const {
    return run_raffia(directory_, arguments, environment);
  }

  // Bad usage: exit code 2, nothing on stdout, `message` on stderr.
  void expect_refused(const std::string& arguments, const std::string& message) const {
    const Result result = raffia(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(message), std::string::npos) << arguments << "\nsaid: " << result.err;
    EXPECT_NE(result.err.find("--help"), std::string::npos) << arguments << "\nsaid: " << result.err;
  }

  fs::path directory_;
};

const std::string kTiny = " --lengths 5,16 --heads 2 --head-dim 8 --random-features 4 --repeats 1";

const std::set<std::string> kFields = {"op",
                                       "pass",
                                       "input",
                                       "causal",
                                       "map",
                                       "threads",
                                       "isa",
                                       "batch",
                                       "heads",
                                       "kv_heads",
                                       "length",
                                       "head_dim",
                                       "value_dim",
                                       "features",
                                       "samples",
                                       "window",
                                       "segment",
                                       "layers",
                                       "dtype",
                                       "seconds",
                                       "tokens_per_second",
                                       "gflops",
                                       "peak_fraction",
                                       "ratio_to_softmax",
                                       "ratio_to_torch_softmax",
                                       "state_bytes",
                                       "peak_rss_bytes",
                                       "bytes_read",
                                       "bandwidth_fraction"};

void expect_sound(const json& record) {
  std::set<std::string> fields;
  for (const auto& [name, value] : record.items()) fields.insert(name);
  EXPECT_EQ(fields, kFields);
  EXPECT_GT(record["seconds"].get<double>(), 0) << record;
  EXPECT_GT(record["gflops"].get<double>(), 0) << record;
  EXPECT_GT(record["peak_fraction"].get<double>(), 0) << record;
  const bool can_go_on = record["causal"] || (record["op"] != "lara" && record["op"] != "eva");
  ASSERT_EQ(record["state_bytes"].is_number(), can_go_on) << record;
  const int64_t state_bytes = can_go_on ? record["state_bytes"].get<int64_t>() : 0;
  if (can_go_on) {
    EXPECT_GT(state_bytes, 0) << record;
  }
  EXPECT_GT(record["peak_rss_bytes"].get<int64_t>(), state_bytes) << record;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(Cli, HelpOfEveryCommandHasAnExample) {
  for (const std::string command :
       {"", "bench", "bench attention", "bench step", "bench decode", "bench prefill", "bench session", "bench isa", "generate",
        "translate", "classify", "state", "state info", "state save", "state restore", "approx", "info"}) {
    const Result result = raffia(command + " --help");
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.out.find("Example:\n  raffia "), std::string::npos) << command << "\nsaid: " << result.out;
    EXPECT_EQ(result.err, "") << command;
  }
}

// Of what such a command prints, raffia itself prints nothing: raffia-train describes its commands without the note.
TEST_F(Cli, CommandsListedAsThoseOfRaffiaTrainAreRunByIt) {
  const std::string note = "(needs raffia-train)";
  std::set<std::string> found;
  for (const std::string group : {"", "bench "}) {
    for (const std::string& line : lines_of(raffia(group + "--help").out)) {
      if (!line.ends_with(note)) continue;
      std::string name;
      std::istringstream(line) >> name;
      found.insert(group + name);
      const Result result = raffia(group + name + " --help");
      EXPECT_EQ(result.out.find(note), std::string::npos) << group << name << "\nsaid: " << result.out;
      EXPECT_TRUE(result.exit_code == 0 || result.err.find("raffia: cannot run ") == 0)
          << group << name << "\nsaid: " << result.err;
    }
  }
  EXPECT_EQ(found, (std::set<std::string>{"train", "convert", "eval", "bench train"}));
}

TEST_F(Cli, VersionIsANumberOnStdout) {
  const Result result = raffia("--version");
  EXPECT_EQ(result.exit_code, 0);
  int major = -1, minor = -1, patch = -1;
  EXPECT_EQ(std::sscanf(result.out.c_str(), "%d.%d.%d", &major, &minor, &patch), 3) << result.out;
}

TEST_F(Cli, BadUsageExitsWithTwoAndSaysWhy) {
  expect_refused("", "subcommand is required");
  expect_refused("frobnicate", "unknown command 'frobnicate', expected one of bench, state, import, generate, translate");
  expect_refused("bench frobnicate",
                 "unknown command 'frobnicate', expected one of attention, step, decode, prefill, session, isa, train");
  expect_refused("info --frobnicate", "--frobnicate");
  expect_refused("info extra", "extra");
  expect_refused("bench attention --frobnicate", "--frobnicate");
  expect_refused("bench attention --lengths abc", "--lengths: 'abc' is not a positive integer");
  expect_refused("bench attention --lengths 16,0", "--lengths: '0' is not a positive integer");
  expect_refused("bench attention --lengths 16,,32", "--lengths: '16,,32' contains an empty value");
  expect_refused("bench attention --lengths 99999999999", "--lengths: '99999999999' is too large");
  expect_refused("bench attention --batch 2.5", "--batch: '2.5' is not a positive integer");
  expect_refused("bench attention --segment x", "--segment: 'x' is not an integer");
  expect_refused("bench attention --seed -3", "--seed: '-3' is not an integer from 0");
  expect_refused("bench attention --ops softmax,nope", "--ops: kind is \"nope\", expected one of softmax, window, rfa, rfa_gate");
  expect_refused("bench attention --passes sideways", "--passes: 'sideways' is unknown, expected one of forward, backward");
  expect_refused("bench attention --map none", "--map: 'none' is unknown, expected one of trig, arccos");
  expect_refused("bench attention --isa mmx", "--isa: 'mmx' is unknown, expected one of scalar");
  expect_refused("bench attention --heads 8 --kv-heads 3", "--kv-heads: 3 does not divide --heads 8");
  expect_refused("bench attention --threads 100000", "--threads: '100000' is too large, expected at most 1024");
  expect_refused("bench attention --json --csv", "--json excludes --csv");
  expect_refused("bench attention --ops softmax --no-softmax", "nothing");
  expect_refused("bench attention --samples 0", "--samples: '0' is not a positive integer");
  expect_refused("bench attention --ops eva --causal --chunk 7",
                 "--ops: eva cannot run with these settings (see --window, --chunk, --samples): chunk is 7, expected a divisor "
                 "of window, 32");
  expect_refused("bench attention --ops lara --causal --samples 3",
                 "samples is 3, expected at least window / chunk * samples_per_proposal, 4");
  expect_refused("bench attention --ops eva --causal --samples 6", "summaries is 6, expected a multiple of 4 (window / chunk)");
  expect_refused("bench step --ops lara --chunk 7", "chunk is 7, expected a divisor of window, 32");
  expect_refused("bench step --ops ra",
                 "--ops: ra has no step of constant cost, expected softmax, window, rfa, rfa_gate, hybrid, lara, eva or mean");
  expect_refused("bench step --lengths -5", "--lengths: '-5' is not a positive integer");
}

TEST_F(Cli, MisspelledNamesGetASuggestion) {
  expect_refused("trian", "raffia: unknown command 'trian': did you mean 'train'?");
  expect_refused("gen", "unknown command 'gen': did you mean 'generate'?");
  expect_refused("bench attenton", "unknown command 'attenton': did you mean 'attention'?");
  expect_refused("generate model --propmt abc", "raffia generate: unknown option '--propmt': did you mean '--prompt'?");
  expect_refused("generate --propmt=abc", "unknown option '--propmt': did you mean '--prompt'?");
  expect_refused("quantize --tpye int8", "unknown option '--tpye': did you mean '--type'?");
  expect_refused("--verison", "unknown option '--verison': did you mean '--version'?");
  EXPECT_EQ(raffia("info --frobnicate").err, "raffia info: unknown option '--frobnicate'\nSee 'raffia info --help'.\n");
}

TEST_F(Cli, LimitsOfNumbersAreKnownBeforeAnyModelIsLoaded) {
  expect_refused("translate /nonexistent --beam 1025", "--beam: '1025' is too large, expected at most 1024");
  expect_refused("generate /nonexistent --repetition-window 1000000000",
                 "--repetition-window: '1000000000' is too large, expected at most 65536");
  expect_refused("state save /nonexistent s --repetition-window 65537", "expected at most 65536");
  expect_refused("bench decode --threads 1025", "--threads: '1025' is too large, expected at most 1024");
  expect_refused("bench session --depths -1", "--depths: '-1' is not an integer of 0 or more");
}

TEST_F(Cli, InfoNamesWhatOpsWillUse) {
  const Result result = raffia("info --json", "RAFFIA_MAX_ISA=scalar");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json info = json::parse(result.out);
  EXPECT_EQ(info["isa"], "scalar");
  EXPECT_EQ(info["isas"], json::array({"scalar"}));
  EXPECT_GE(info["threads"].get<int>(), 1);
  for (const char* field : {"version", "cpu", "compiler", "highway", "os"})
    EXPECT_FALSE(info[field].get<std::string>().empty()) << field;
  EXPECT_TRUE(info["cache_bytes"].is_object());
  EXPECT_NE(raffia("info").out.find("scalar"), std::string::npos);
}

TEST_F(Cli, InfoPrintsExceptionsToTheIsa) {
  const std::string environment = "RAFFIA_MAX_ISA=linear_step=scalar";
  const json info = json::parse(raffia("info --json", environment).out);
  if (info["isa"] == "scalar") GTEST_SKIP() << "there is nothing but scalar";
  EXPECT_EQ(info["isa_exceptions"]["linear_step"], "scalar") << info;
  EXPECT_NE(raffia("info", environment).out.find(", linear_step: scalar (available: "), std::string::npos);
  EXPECT_FALSE(json::parse(raffia("info --json").out)["isa_exceptions"].contains("linear_step"));
  EXPECT_EQ(json::parse(raffia("info --json", "RAFFIA_MAX_ISA=scalar").out)["isa_exceptions"], json::object());
}

TEST_F(Cli, UnknownIsaInTheEnvironmentIsAFailure) {
  const Result result = raffia("info", "RAFFIA_MAX_ISA=mmx");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("RAFFIA_MAX_ISA"), std::string::npos) << result.err;
}

TEST_F(Cli, BenchAttentionPrintsEveryCaseOnceAsJson) {
  const Result result =
      raffia("bench attention --json --causal --ops softmax,rfa,rfa_gate --input features,qk --threads 1,2" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json records = json::parse(result.out);
  ASSERT_EQ(records.size(), 2 * 2 * (1 + 2 * 2)) << records;  // lengths x threads x (softmax + two ops x two inputs)
  std::set<std::string> cases;
  for (const json& record : records) {
    expect_sound(record);
    EXPECT_EQ(record["pass"], "forward");
    EXPECT_EQ(record["causal"], true);
    EXPECT_GT(record["ratio_to_softmax"].get<double>(), 0);
    if (record["op"] == "softmax") {
      EXPECT_EQ(record["ratio_to_softmax"], 1.0);
      EXPECT_TRUE(record["features"].is_null());
      EXPECT_EQ(record["state_bytes"], record["length"].get<int64_t>() * 2 * (8 + 8) * 4);
    } else {
      EXPECT_EQ(record["map"], "trig");
      EXPECT_EQ(record["features"], 8);
      EXPECT_EQ(record["state_bytes"], 2 * (8 * 8 + 8 + 2) * 4);
    }
    cases.insert(json({record["op"], record["input"], record["threads"], record["length"]}).dump());
  }
  EXPECT_EQ(cases.size(), records.size());
}

TEST_F(Cli, GflopsAreTheDocumentedFlopOverSeconds) {
  const Result result = raffia("bench attention --json --passes forward,backward,forward+backward --input features,qk" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const json& record : json::parse(result.out)) {
    const double length = record["length"], heads = 2, d = 8, dv = 8, features = 8, rows = 4;
    const std::string pass = record["pass"];
    double flops = 0;
    if (record["op"] == "softmax") {
      flops = (pass == "forward" ? 4 : pass == "backward" ? 10 : 14) * length * dv;
      if (record["causal"]) flops /= 2;
    } else {
      flops = (pass == "forward" ? 4 : pass == "backward" ? 10 : 14) * features * (dv + 1);
      if (pass == "forward" && record["input"] == "qk") flops += 4 * d * rows;
    }
    const double expected = 1e-9 * length * heads * flops / record["seconds"].get<double>();
    EXPECT_NEAR(record["gflops"].get<double>(), expected, 1e-9 * expected) << record;  // two orders of the same few products
  }
}

TEST_F(Cli, EveryEstimatorRunsEveryPassInBothForms) {
  const std::string ops = "--ops hybrid,lara,ra,eva --input features,qk --passes forward,backward,forward+backward";
  const json none;
  for (const bool causal : {false, true}) {
    const Result result = raffia("bench attention --json " + ops + (causal ? " --causal" : "") + kTiny);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json records = json::parse(result.out);
    ASSERT_EQ(records.size(), 2 * 3 * (2 + 3)) << records;  // lengths x passes x (hybrid with both inputs + three ops)
    for (const json& record : records) {
      expect_sound(record);
      EXPECT_GT(record["ratio_to_softmax"].get<double>(), 0) << record;
      EXPECT_TRUE(record["segment"].is_null()) << record;
      const std::string op = record["op"];
      EXPECT_EQ(record["causal"], causal || op == "hybrid") << record;
      EXPECT_EQ(record["map"], op == "hybrid" ? json("trig") : none) << record;
      EXPECT_EQ(record["features"], op == "hybrid" ? json(8) : op == "eva" && causal ? json(4) : none) << record;
      EXPECT_EQ(record["window"], op == "hybrid" || op == "eva" || (op == "lara" && causal) ? json(32) : none) << record;
      EXPECT_EQ(record["samples"], op == "lara"  ? json(causal ? 128 : 64)
                                   : op == "eva" ? json(causal ? 256 : 64)
                                   : op == "ra"  ? json(1)
                                                 : none)
          << record;
    }
  }
}

TEST_F(Cli, TheMeanRunsEveryPassInBothFormsAndByStep) {
  for (const std::string causal : {"", " --causal"}) {
    const Result result =
        raffia("bench attention --json --ops mean --passes forward,backward --input features,qk" + causal + kTiny);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json records = json::parse(result.out);
    ASSERT_EQ(records.size(), 2 * 2) << records;  // lengths x passes
    for (const json& record : records) {
      EXPECT_EQ(record["op"], "mean") << record;
      EXPECT_GT(record["seconds"].get<double>(), 0) << record;
      EXPECT_GT(record["gflops"].get<double>(), 0) << record;
      EXPECT_GT(record["ratio_to_softmax"].get<double>(), 0) << record;
      EXPECT_TRUE(record["map"].is_null()) << record;
      EXPECT_EQ(record["state_bytes"].is_number(), !causal.empty()) << record;
    }
  }
  const Result steps = raffia("bench step --json --ops mean --input qk" + kTiny);
  ASSERT_EQ(steps.exit_code, 0) << steps.err;
  const json records = json::parse(steps.out);
  ASSERT_EQ(records.size(), 2) << records;
  EXPECT_EQ(records[0]["state_bytes"], records[1]["state_bytes"]) << "of constant size";
}

TEST_F(Cli, GflopsOfEstimatorsAreTheDocumentedFlopOverSeconds) {
  for (const bool causal : {false, true}) {
    const Result result = raffia(
        "bench attention --json --ops hybrid,lara,ra,eva --passes forward,backward --window 4 --chunk 2 --samples 4 "
        "--value-dim 5 --lengths 16 --heads 2 --head-dim 8 --random-features 3 --repeats 1" +
        std::string(causal ? " --causal" : ""));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (const json& record : json::parse(result.out)) {
      const std::string op = record["op"];
      const bool forward = record["pass"] == "forward";
      const double length = 16, heads = 2, d = 8, dv = 5, features = 6, rows = 3, samples = 4;
      // Four windows of two chunks: 0, 2, 4, 6 chunks before them, of which 4 are samples or summaries, and the rest is folded
      // into 3 features. Bidirectional: 4 chunks of 4 tokens, which is the window too.
      const double before = (0 + 2 + 4 + 4) / 4.0, folded = 3 / 4.0;
      const double keys = op == "hybrid" ? 1.5 * 4
                          : op == "ra"   ? samples * length / (causal ? 2 : 1)
                          : op == "lara" ? (causal ? 2 + 2 * before : 2 * samples)
                                         : (causal ? 2 + before + folded : samples + 4);
      double flops = keys * (forward ? 2 * d + 2 * dv : 6 * d + 4 * dv);
      if (op == "ra") flops += keys * 2 * d;
      if (op == "hybrid") flops += forward ? 4 * features * (dv + 1) + 4 * d * rows : 10 * features * (dv + 1);
      const double expected = 1e-9 * length * heads * flops / record["seconds"].get<double>();
      EXPECT_NEAR(record["gflops"].get<double>(), expected, 1e-9 * expected) << record;  // two orders of the same few products
    }
  }
}

TEST_F(Cli, EstimatorsRunWithGroupedHeadsAndEveryTypeAndLayout) {
  const std::string shape =
      " --ops hybrid,lara,ra,eva --passes forward,backward --value-dim 5 --kv-heads 1 --samples 8" + kTiny + " --no-softmax";
  for (const std::string flags : {"--dtype bf16", "--layout bhtd", "--isa scalar", "--batch 3", "--causal --dtype bf16",
                                  "--causal --layout bhtd", "--causal --isa scalar", "--causal --batch 3"}) {
    const Result result = raffia("bench attention --json " + flags + shape);
    ASSERT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
    for (const json& record : json::parse(result.out)) expect_sound(record);
  }
}

TEST_F(Cli, EachOpIsComparedWithSoftmaxOfItsOwnKind) {
  // Without --causal rfa reads all keys and rfa_gate does not: softmax runs both ways.
  const Result result =
      raffia("bench attention --json --ops softmax,rfa,rfa_gate --lengths 16 --repeats 1 --heads 1 --head-dim 8");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  double seconds[2] = {0, 0};
  const json records = json::parse(result.out);
  for (const json& record : records) {
    if (record["op"] == "softmax") seconds[record["causal"].get<bool>() ? 1 : 0] = record["seconds"];
  }
  for (const json& record : records) {
    EXPECT_EQ(record["causal"], record["op"] == "rfa_gate" || (record["op"] == "softmax" && record["seconds"] == seconds[1]))
        << record;
    const double ratio = seconds[record["causal"].get<bool>() ? 1 : 0] / record["seconds"].get<double>();
    EXPECT_DOUBLE_EQ(record["ratio_to_softmax"].get<double>(), ratio) << record;
  }
}

TEST_F(Cli, SoftmaxIsLeftOutOnDemandAndAboveItsLength) {
  for (const std::string flags : {" --no-softmax", " --softmax-max-length 4"}) {
    const Result result = raffia("bench attention --json --ops softmax,rfa_gate" + flags + kTiny);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json records = json::parse(result.out);
    EXPECT_EQ(records.size(), 2);
    for (const json& record : records) {
      EXPECT_EQ(record["op"], "rfa_gate");
      EXPECT_TRUE(record["ratio_to_softmax"].is_null());
    }
  }
}

TEST_F(Cli, ContendersAreEstimatorsWithSettings) {
  const auto ops_of = [](const Result& result) {
    std::vector<std::string> ops;
    for (const json& record : json::parse(result.out)) ops.push_back(record["op"]);
    return ops;
  };
  const std::string shape = " --lengths 16 --repeats 1 --heads 2 --head-dim 8";
  const Result repeated =
      raffia("bench attention --json --ops 'lara;lara:mean=false,samples=4' --ops rfa:map=elu,softmax" + shape);
  ASSERT_EQ(repeated.exit_code, 0) << repeated.err;
  EXPECT_EQ(ops_of(repeated), (std::vector<std::string>{"softmax", "lara", "lara:mean=false,samples=4", "rfa:map=elu"}));
  const json records = json::parse(repeated.out);
  EXPECT_EQ(records[1]["samples"], 64);
  EXPECT_EQ(records[2]["samples"], 4);
  EXPECT_EQ(records[3]["features"], 8);

  const Result steps =
      raffia("bench step --json --ops 'window:window=4,before=1;hybrid:window=4,map=positive' --no-softmax" + shape);
  ASSERT_EQ(steps.exit_code, 0) << steps.err;
  EXPECT_EQ(json::parse(steps.out)[0]["window"], 4);
  EXPECT_EQ(json::parse(steps.out)[2]["map"], "positive");

  const Result one = raffia("bench attention --json --causal --ops lara --no-softmax --samples 8 --window 8 --chunk 4" + shape);
  EXPECT_EQ(json::parse(one.out)[0]["samples"], 8) << "flags are the defaults of settings";
}

TEST_F(Cli, SegmentsAreContenders) {
  const Result result = raffia("bench attention --json --ops rfa_gate --segment -1,0,8" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::multiset<int64_t> segments;
  for (const json& record : json::parse(result.out)) segments.insert(record["segment"].get<int64_t>());
  EXPECT_EQ(segments, (std::multiset<int64_t>{-1, -1, 0, 0, 8, 8}));
}

TEST_F(Cli, EveryMapTypeAndLayoutRuns) {
  const std::string shape = " --ops rfa_gate --passes forward,backward --input features,qk --value-dim 5 --kv-heads 1" + kTiny;
  for (const std::string flags : {"--map arccos", "--map positive", "--map positive2", "--map elu", "--map relu", "--dtype bf16",
                                  "--layout bhtd", "--isa scalar", "--batch 3"}) {
    const Result result = raffia("bench attention --json " + flags + shape);
    ASSERT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
    for (const json& record : json::parse(result.out)) expect_sound(record);
  }
}

TEST_F(Cli, BenchStepReportsBandwidthOfTheCache) {
  const Result result = raffia("bench step --json --ops softmax,rfa,rfa_gate" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json records = json::parse(result.out);
  ASSERT_EQ(records.size(), 2 * (1 + 2 * 2)) << records;
  for (const json& record : records) {
    expect_sound(record);
    EXPECT_EQ(record["pass"], "step");
    if (record["op"] == "softmax") {
      EXPECT_EQ(record["bytes_read"], record["length"].get<int64_t>() * 2 * (8 + 8) * 4);
      EXPECT_GT(record["bandwidth_fraction"].get<double>(), 0);
    } else {
      EXPECT_TRUE(record["bandwidth_fraction"].is_null());
    }
  }
}

TEST_F(Cli, StepsOfEstimatorsKeepAStateThatDoesNotGrow) {
  // Before, at and past the depth from which the state is full, 2 samples or summaries of each window of 4 tokens.
  const Result result = raffia(
      "bench step --json --ops softmax,hybrid,lara,eva --lengths 3,64,65537 --window 4 --chunk 2 --samples 8 --batch 2 "
      "--heads 2 --head-dim 8 --random-features 4 --repeats 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json records = json::parse(result.out);
  ASSERT_EQ(records.size(), 3 * (1 + 2 + 2)) << records;
  std::map<std::string, std::set<int64_t>> sizes;
  for (const json& record : records) {
    expect_sound(record);
    EXPECT_EQ(record["pass"], "step");
    if (record["op"] == "softmax") continue;
    EXPECT_EQ(record["window"], 4);
    EXPECT_TRUE(record["bytes_read"].is_null());
    sizes[record["op"].get<std::string>() + record["input"].get<std::string>()].insert(record["state_bytes"].get<int64_t>());
  }
  ASSERT_EQ(sizes.size(), 4U);
  for (const auto& [contender, bytes] : sizes) EXPECT_EQ(bytes.size(), 1U) << contender;
}

TEST_F(Cli, CsvHasOneLinePerRecordAndOneCellPerField) {
  const Result result = raffia("bench step --csv" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 1 + 2 * 3);
  EXPECT_EQ(lines[0].rfind("op,pass,input,causal,", 0), 0U) << lines[0];
  for (const std::string& line : lines) EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::ssize(kFields) - 1) << line;
}

TEST_F(Cli, MarkdownIsATableUnderWhatAllRecordsShare) {
  const Result result = raffia("bench step" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 2 + 2 + 2 * 3) << result.out;
  EXPECT_NE(lines[0].find("heads 2"), std::string::npos) << lines[0];
  EXPECT_EQ(lines[1], "");
  for (size_t i = 2; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].front(), '|');
    EXPECT_EQ(std::count(lines[i].begin(), lines[i].end(), '|'), std::count(lines[2].begin(), lines[2].end(), '|')) << lines[i];
    EXPECT_EQ(lines[i].size(), lines[2].size()) << lines[i];
  }
}

TEST_F(Cli, PlotWritesSvgAndPngAndNothingElse) {
  const fs::path plots = directory_ / "it's a plot";
  fs::create_directories(plots);
  const Result result = raffia("bench attention --csv --ops softmax,rfa,rfa_gate,hybrid,lara,eva --plot \"" +
                               (plots / "time").string() + "\"" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Progress, and no warnings of gnuplot.
  for (const std::string& line : lines_of(result.err))
    EXPECT_TRUE(line.find("% done") != std::string::npos || line.starts_with("multiply-add peak")) << line;
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(plots)) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"time.png", "time.svg"}));
  EXPECT_EQ(contents(plots / "time.png").substr(1, 3), "PNG");
  const std::string svg = contents(plots / "time.svg");
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  for (const char* title : {"softmax", "RFA-Gate", "hybrid", "LARA", "EVA"})
    EXPECT_NE(svg.find(title), std::string::npos) << title;
  EXPECT_EQ(lines_of(result.out).size(), 1 + 2 * 7) << result.out;
}

TEST_F(Cli, PlotWithoutGnuplotNamesThePackageBeforeMeasuring) {
  const Result result = raffia("bench attention --plot '" + (directory_ / "p").string() + "'" + kTiny, "PATH=/nonexistent");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("gnuplot-nox"), std::string::npos) << result.err;
}

TEST_F(Cli, UnwritablePlotIsAFailure) {
  const Result result = raffia("bench attention --csv --plot '" + (directory_ / "missing" / "p").string() + "'" + kTiny);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("--plot"), std::string::npos) << result.err;
}

// Names and values of others are in it.
TEST_F(Cli, AMessageIsOneLineThatControlsNoTerminal) {
  const Result named = raffia("state info \"$(printf 'a\\nb\\033[31m')\"");
  EXPECT_EQ(named.exit_code, 1);
  EXPECT_EQ(lines_of(named.err).size(), 1U) << named.err;
  EXPECT_NE(named.err.find("a\\nb\\x1b[31m"), std::string::npos) << named.err;
  std::ofstream(directory_ / "tokenizer.json") << R"({"kind": ")" << std::string(100000, 'x') << R"(", "version": 1})";
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy_file(raffia::internal::golden_directory() / "lm-gate" / file, directory_ / file);
  }
  const Result valued = raffia("generate --prompt a '" + directory_.string() + "'");
  EXPECT_EQ(valued.exit_code, 1);
  EXPECT_LT(valued.err.size(), 2200U);
  EXPECT_NE(valued.err.find("tokenizer.json"), std::string::npos);
  EXPECT_NE(valued.err.find("expected"), std::string::npos);
}

TEST_F(Cli, MoreMemoryThanThereIsIsAFailure) {
  const Result result = raffia("bench attention --ops rfa_gate --no-softmax --lengths 1000000000 --batch 1000 --repeats 1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("memory"), std::string::npos) << result.err;
}

}  // namespace
