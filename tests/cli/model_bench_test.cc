// Benchmarks of whole models: what their records say.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "cli/command_line.h"
#include "cli/model_case.h"
#include "support/temporary_directory.h"

namespace {

using nlohmann::json;

constexpr int64_t kLayers = 2, kWidth = 32, kVocabulary = 50;
const std::string kTiny = " --layers 2 --width 32 --heads 2 --vocabulary 50 --repeats 1";

class ModelBench : public testing::Test {
 protected:
  Result raffia(const std::string& arguments) const { return run_raffia(directory_.path(), arguments, ""); }

  json records_of(const std::string& arguments) const {
    const Result result = raffia(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json::array();
  }

  void expect_refused(const std::string& arguments, const std::string& message) const {
    const Result result = raffia(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(message), std::string::npos) << arguments << "\nsaid: " << result.err;
  }

  raffia::internal::TemporaryDirectory directory_{"model_bench_test"};
};

const std::set<std::string> kFields = {"test",
                                       "op",
                                       "model",
                                       "type",
                                       "batch",
                                       "depth",
                                       "threads",
                                       "isa",
                                       "layers",
                                       "width",
                                       "heads",
                                       "vocabulary",
                                       "parameters",
                                       "seconds",
                                       "tokens_per_second",
                                       "ratio_to_softmax",
                                       "state_bytes",
                                       "weight_bytes",
                                       "weight_gbps",
                                       "bandwidth_gbps",
                                       "bandwidth_fraction",
                                       "product_gflops",
                                       "peak_gflops",
                                       "peak_fraction",
                                       "peak_rss_bytes"};

// Numbers of a layer of width E with biases and two norms: four projections, two halves of the feed-forward part.
constexpr int64_t kLayerParameters = 12 * kWidth * kWidth + (4 + 4 + 1) * kWidth + 4 * kWidth;

TEST_F(ModelBench, DecodeCountsTokensBytesAndRatios) {
  const json records = records_of("bench decode --depths 0,300 --batch 1,3 --tokens 4 --threads 1,2" + kTiny);
  ASSERT_EQ(records.size(), 2U * 2 * 2 * 2) << records;
  std::map<std::string, std::set<int64_t>> states;
  for (const json& record : records) {
    std::set<std::string> fields;
    for (const auto& [name, value] : record.items()) fields.insert(name);
    EXPECT_EQ(fields, kFields);
    const int64_t depth = record["depth"], batch = record["batch"];
    EXPECT_EQ(record["test"], "tg4 @ d" + std::to_string(depth));
    EXPECT_EQ(record["type"], "f32");
    const double seconds = record["seconds"];
    ASSERT_GT(seconds, 0);
    EXPECT_DOUBLE_EQ(record["tokens_per_second"].get<double>(), 4.0 * static_cast<double>(batch) / seconds);
    EXPECT_EQ(record["weight_gbps"].is_number(), batch == 1) << record;
    EXPECT_EQ(record["bandwidth_fraction"].is_number(), batch == 1) << record;
    EXPECT_TRUE(record["peak_fraction"].is_null()) << record;
    EXPECT_GT(record["peak_rss_bytes"].get<int64_t>(), record["weight_bytes"].get<int64_t>()) << record;
    EXPECT_GT(record["weight_bytes"].get<int64_t>(), record["parameters"].get<int64_t>() * 4) << record;
    const bool is_softmax = record["op"] == "softmax";
    if (is_softmax) {
      EXPECT_EQ(record["ratio_to_softmax"], 1.0);
      EXPECT_EQ(record["parameters"], kLayers * kLayerParameters + kVocabulary * kWidth + 2 * kWidth);
      EXPECT_EQ(record["state_bytes"], kLayers * depth * 2 * kWidth * 4);
    } else {
      EXPECT_GT(record["ratio_to_softmax"].get<double>(), 0);
      states["rfa_gate"].insert(record["state_bytes"].get<int64_t>());
    }
  }
  // Of any length.
  EXPECT_EQ(states["rfa_gate"].size(), 1U);
}

TEST_F(ModelBench, TypesOfWeightsAreMeasuredOneByOne) {
  const json records =
      records_of("bench decode --estimators rfa_gate,softmax --type f32,bf16,int8,int4 --depths 7 --tokens 2" + kTiny);
  ASSERT_EQ(records.size(), 8U);
  std::map<std::string, int64_t> bytes;
  for (const json& record : records) {
    bytes[record["type"]] = record["weight_bytes"];
    EXPECT_TRUE(record["ratio_to_softmax"].is_number()) << record;
  }
  ASSERT_EQ(bytes.size(), 4U);
  EXPECT_LT(bytes["bf16"], bytes["f32"]);
  EXPECT_LT(bytes["int8"], bytes["bf16"]);
  EXPECT_LT(bytes["int4"], bytes["int8"]);
}

TEST_F(ModelBench, EveryEstimatorStepsAtAnyDepth) {
  const std::string windowed = "hybrid,lara:samples=16,eva:samples=16,window";
  // Before and after the depth from which sessions are not read to the end; ra reads all of the past for every token.
  const json short_ones =
      records_of("bench decode --estimators rfa,ra," + windowed + " --depths 0,65 --batch 2 --tokens 3" + kTiny);
  const json long_ones = records_of("bench decode --estimators " + windowed + " --depths 4500 --batch 2 --tokens 3" + kTiny);
  EXPECT_EQ(short_ones.size(), 12U);
  EXPECT_EQ(long_ones.size(), 4U);
  for (const json& records : {short_ones, long_ones}) {
    for (const json& record : records) {
      EXPECT_TRUE(record["ratio_to_softmax"].is_null()) << record;
      EXPECT_GT(record["tokens_per_second"].get<double>(), 0) << record;
    }
  }
}

TEST_F(ModelBench, PrefillReadsWholePrompts) {
  const json records = records_of("bench prefill --lengths 5,600" + kTiny);
  ASSERT_EQ(records.size(), 4U);
  for (const json& record : records) {
    const int64_t length = std::stoll(record["test"].get<std::string>().substr(2));
    EXPECT_DOUBLE_EQ(record["tokens_per_second"].get<double>(), static_cast<double>(length) / record["seconds"].get<double>());
    EXPECT_TRUE(record["weight_gbps"].is_null());
    const double gflops = record["product_gflops"];
    EXPECT_DOUBLE_EQ(record["peak_fraction"].get<double>(), gflops / record["peak_gflops"].get<double>());
    if (record["op"] == "softmax") {
      // 12 matrices of E x E in a layer: four projections, two of 4 E x E.
      constexpr double kFlopsPerToken = 2.0 * kLayers * 12 * kWidth * kWidth;
      EXPECT_NEAR(gflops, 1e-9 * kFlopsPerToken * record["tokens_per_second"].get<double>(), 1e-9 * gflops);
      EXPECT_EQ(record["state_bytes"], kLayers * length * 2 * kWidth * 4);
    }
  }
}

TEST_F(ModelBench, CachesAboveTheLimitAreLeftOut) {
  // 2 layers x 2 x 32 floats x 4 million tokens are 2 GB.
  const Result result = raffia("bench decode --depths 4000000 --cache-limit 1 --tokens 1 --json" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json records = json::parse(result.out);
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0]["op"], "rfa_gate");
  EXPECT_NE(result.err.find("softmax is skipped in tg1 @ d4000000"), std::string::npos) << result.err;
}

TEST_F(ModelBench, PlotsSpeedAndMemoryAgainstDepth) {
  const std::string prefix = (directory_.path() / "it's a plot").string();
  const Result result = raffia("bench decode --depths 0,8,64 --threads 1,2 --tokens 2 --plot \"" + prefix + "\"" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::ifstream png(prefix + ".png", std::ios::binary), svg(prefix + ".svg");
  std::string head(4, ' ');
  png.read(head.data(), 4);
  EXPECT_EQ(head.substr(1), "PNG");
  const std::string drawn{std::istreambuf_iterator<char>(svg), {}};
  for (const char* text : {"RFA-Gate, 1 thread", "softmax, 2 threads", "tokens per second", "memory of a session", "</svg>"}) {
    EXPECT_NE(drawn.find(text), std::string::npos) << text;
  }
}

using BenchOfADirectory = ModelCommand;

TEST_F(BenchOfADirectory, WeightsMayBeCopiedIntoMemory) {
  for (const std::string& command :
       {"bench decode --depths 0 --tokens 2 --repeats 1 --model " + model("lm-gate"),
        "bench prefill --lengths 8 --repeats 1 --model " + model("lm-gate"),
        std::string("bench session --depths 4 --prompt-tokens 8 --layers 1 --width 16 --heads 1 --repeats 1")}) {
    const json mapped = json_of(command), copied = json_of(command + " --no-mmap");
    ASSERT_GT(copied.size(), 0U) << command;
    ASSERT_EQ(copied.size(), mapped.size()) << command;
    EXPECT_EQ(copied[0]["weight_bytes"], mapped[0]["weight_bytes"]) << command;
  }
}

TEST_F(BenchOfADirectory, FilesOfAKilledBenchAreRemovedByTheNext) {
  namespace fs = std::filesystem;
  const fs::path temporary = directory_.path() / "temporary";
  fs::create_directory(temporary);
  const auto left = [&] { return std::distance(fs::directory_iterator(temporary), fs::directory_iterator()); };
  const std::string session = "bench session --depths 4 --prompt-tokens 8 --layers 1 --width 16 --heads 1 --repeats ";
  const std::string in_temporary = "TMPDIR='" + temporary.string() + "' ";
  // Long enough to be killed once its directory is there.
  const auto script = directory_.write(
      "script", "cd '" + directory_.path().string() + "'\n" + in_temporary + "'" + raffia::internal::raffia_command() + "' " +
                    session + "1000000 >killed 2>&1 & p=$!\n" +
                    "i=0; while [ -z \"$(ls -A temporary)\" ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i + 1)); done\n" +
                    "sleep 0.3; kill -KILL $p; wait $p\n");
  EXPECT_EQ(WEXITSTATUS(std::system(("bash '" + script.string() + "' 2>/dev/null").c_str())), 137);
  EXPECT_EQ(left(), 1) << contents(directory_.path() / "killed");
  // Nor does it take a directory that is there already.
  const fs::path known = temporary / "known";
  fs::create_directory(known);
  EXPECT_EQ(raffia(session + "1", in_temporary).exit_code, 0);
  EXPECT_EQ(left(), 1);
  EXPECT_TRUE(fs::exists(known));
}

// The golden models have vocabularies of a few tokens.
TEST_F(BenchOfADirectory, SessionsOfASmallVocabularyAreTimed) {
  const json records = json_of("bench session --depths 4 --prompt-tokens 8 --repeats 1 --model " + model("lm-gate"));
  std::set<std::string> tests;
  for (const json& record : records) tests.insert(record["test"]);
  EXPECT_EQ(tests, (std::set<std::string>{"start to first token", "save", "restore", "fork", "known prompt", "unknown prompt"}));
}

TEST_F(ModelBench, BadFlagsAreRefused) {
  expect_refused("bench decode --depths 5,-1", "--depths: '-1' is not an integer of 0 or more");
  expect_refused("bench decode --type f16", "--type: 'f16' is unknown, expected one of f32, bf16, int8, int4");
  expect_refused("bench decode --estimators nope", "nope");
  expect_refused("bench decode --width 30 --heads 4", "heads");
  expect_refused("bench prefill --lengths 0", "--lengths: '0' is not a positive integer");
  expect_refused("bench decode --model nowhere --layers 3", "--layers");
  expect_refused("bench decode --depths 0 --plot p", "--plot: all depths are 0");
  EXPECT_EQ(raffia("bench decode --model nowhere").exit_code, 1);
}

}  // namespace
