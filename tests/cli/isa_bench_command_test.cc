// raffia bench isa from outside: what it prints, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "support/temporary_directory.h"

namespace {

using nlohmann::json;

const std::string kTiny = " --length 16 --heads 2 --head-dim 8 --random-features 4 --repeats 1";

class IsaBenchCommand : public testing::Test {
 protected:
  Result raffia(const std::string& arguments, const std::string& environment = "") const {
    return run_raffia(directory_.path(), arguments, environment);
  }

  json records_of(const std::string& arguments, const std::string& environment = "") const {
    const Result result = raffia("bench isa --json " + arguments + kTiny, environment);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out);
  }

  // Without scalar, where there are others.
  std::vector<std::string> vector_isas() const {
    auto isas = json::parse(raffia("info --json").out)["isas"].get<std::vector<std::string>>();
    if (isas.size() > 1) std::erase(isas, "scalar");
    return isas;
  }

  void expect_refused(const std::string& arguments, const std::string& message) const {
    const Result result = raffia("bench isa " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(message), std::string::npos) << arguments << "\nsaid: " << result.err;
    EXPECT_NE(result.err.find("--help"), std::string::npos) << arguments << "\nsaid: " << result.err;
  }

  raffia::internal::TemporaryDirectory directory_{"isa_bench_command_test"};
};

TEST_F(IsaBenchCommand, RecordsHaveFieldsForTheInstructionSetsOfInfo) {
  std::set<std::string> expected = {"op", "pass", "input", "causal", "shape", "dtype", "threads", "slower"};
  for (const std::string& isa : vector_isas()) {
    for (const char* field : {"seconds_", "ratio_", "gflops_", "peak_fraction_"}) expected.insert(field + isa);
  }
  const json records = records_of("--ops softmax,rfa_gate,product_bf16,layer_norm,features_trig");
  ASSERT_EQ(records.size(), 5 + 6 + 4 + 1 + 1) << records;
  for (const json& record : records) {
    std::set<std::string> fields;
    for (const auto& [name, value] : record.items()) fields.insert(name);
    EXPECT_EQ(fields, expected);
    for (const std::string& isa : vector_isas()) EXPECT_GT(record["seconds_" + isa].get<double>(), 0) << record;
    EXPECT_EQ(record["input"].is_null(), record["causal"].is_null()) << record;
  }
}

TEST_F(IsaBenchCommand, ScalarIsMeasuredIfAskedFor) {
  for (const json& record : records_of("--ops gelu --scalar")) EXPECT_GT(record["seconds_scalar"].get<double>(), 0) << record;
}

TEST_F(IsaBenchCommand, OneInstructionSetIsMeasuredAlone) {
  for (const json& record : records_of("--ops gelu", "RAFFIA_MAX_ISA=scalar")) {
    EXPECT_GT(record["seconds_scalar"].get<double>(), 0) << record;
    EXPECT_TRUE(record["ratio_scalar"].is_null()) << record;
    EXPECT_TRUE(record["slower"].is_null()) << record;
  }
}

TEST_F(IsaBenchCommand, CsvIsALinePerRecord) {
  const Result result = raffia("bench isa --csv --ops product_f32" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::ranges::count(result.out, '\n'), 1 + 4) << result.out;
  EXPECT_EQ(result.out.rfind("op,pass,input,causal,shape,dtype,threads,seconds_", 0), 0U) << result.out;
}

TEST_F(IsaBenchCommand, BadUsageExitsWithTwoAndSaysWhy) {
  expect_refused("--ops rfa,nope", "--ops: kind is \"nope\", expected one of softmax, window, rfa");
  expect_refused("--ops rfa,nope", "product_int4");
  expect_refused("--ops rfa:map=nope", "--ops: map of rfa is \"nope\"");
  expect_refused("--length 0", "--length: '0' is not a positive integer");
  expect_refused("--threads 100000", "--threads: '100000' is too large, expected at most 1024");
  expect_refused("--ops rotary --head-dim 7", "--head-dim: 7 is odd, expected an even number for rotary");
  expect_refused("--json --csv", "--json excludes --csv");
  expect_refused("--isa avx2", "--isa");
}

}  // namespace
