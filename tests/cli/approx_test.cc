// raffia approx from outside: what it prints, which files it reads and writes, and how it exits.
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "io/formats/safetensors.h"
#include "raffia/attention.h"
#include "support/arrays.h"

namespace raffia::internal {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class Approx : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "raffia-approx-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  // `arguments` go through the shell; `environment` is put before the command.
  Result approx(const std::string& arguments, const std::string& environment = "") const {
    return run_raffia(directory_, "approx " + arguments, environment);
  }

  json records(const std::string& arguments) const {
    const Result result = approx("--json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return result.exit_code == 0 ? json::parse(result.out) : json::array();
  }

  void expect_exit(int code, const std::string& arguments, const std::string& message) const {
    const Result result = approx(arguments);
    EXPECT_EQ(result.exit_code, code) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_NE(result.err.find(message), std::string::npos) << arguments << "\nsaid: " << result.err;
  }

  // A .npy file of format version 1.
  std::string write_npy(const std::string& name, const std::string& shape, const std::vector<float>& values) const {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string bytes = std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header;
    for (const float value : values) {
      for (size_t i = 0; i < 4; ++i) bytes += static_cast<char>(std::bit_cast<uint32_t>(value) >> (8 * i));
    }
    std::ofstream(directory_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return (directory_ / name).string();
  }

  fs::path directory_;
};

const std::string kTiny = " --length 40 --head-dim 8 --seeds 2";

const std::set<std::string> kFields = {
    "estimator",  "spec",     "samples",       "data",       "scale",    "causal",          "target", "threads",
    "batch",      "heads",    "kv_heads",      "length",     "head_dim", "value_dim",       "seeds",  "mse",
    "mse_stderr", "base_mse", "max_abs_error", "clamp_rate", "seconds",  "ratio_to_softmax"};

TEST_F(Approx, HelpHasAnExample) {
  const Result result = approx("--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("Example:\n  raffia approx "), std::string::npos) << result.out;
}

TEST_F(Approx, PrintsOneRecordPerDataSetEstimatorAndSamples) {
  const json found =
      records("--data iid,walk,rw --scale 0.5,1 --estimators softmax,rfa:map=positive,rfa:map=elu --samples 4,8" + kTiny);
  ASSERT_EQ(found.size(), 3 * 2 * (1 + 2 + 1));  // softmax and elu have no samples to vary
  std::set<std::string> cases;
  for (const json& record : found) {
    std::set<std::string> fields;
    for (const auto& [name, value] : record.items()) fields.insert(name);
    EXPECT_EQ(fields, kFields);
    EXPECT_EQ(record["length"], 40);
    EXPECT_EQ(record["head_dim"], 8);
    EXPECT_EQ(record["seeds"], 2);
    EXPECT_EQ(record["causal"], false);
    EXPECT_EQ(record["target"], "softmax");
    EXPECT_GT(record["base_mse"].get<double>(), 0);
    EXPECT_GT(record["mse"].get<double>(), 0);
    EXPECT_GE(record["mse_stderr"].get<double>(), 0);
    EXPECT_GE(std::pow(record["max_abs_error"].get<double>(), 2), record["mse"].get<double>());
    EXPECT_GT(record["seconds"].get<double>(), 0);
    EXPECT_GT(record["ratio_to_softmax"].get<double>(), 0);
    cases.insert(json({record["data"], record["scale"], record["spec"]}).dump());
    if (record["estimator"] == "softmax") {
      EXPECT_LT(record["mse"].get<double>(), 1e-10) << "fp32 against double";
      EXPECT_EQ(record["ratio_to_softmax"], 1.0);
    }
    if (record["spec"] == "softmax" || record["spec"] == "rfa:map=elu") {
      EXPECT_TRUE(record["samples"].is_null()) << record;
    } else {
      EXPECT_EQ(record["spec"], "rfa:samples=" + record["samples"].dump() + ",map=positive");
    }
  }
  EXPECT_EQ(cases.size(), found.size());
}

TEST_F(Approx, OneSeedHasNoStandardError) {
  for (const json& record : records("--estimators rfa:map=positive --samples 4 --length 20 --head-dim 4 --seeds 1")) {
    EXPECT_TRUE(record["mse_stderr"].is_null());
  }
}

TEST_F(Approx, MoreFeaturesAndGentlerScalesMeanLessError) {
  const json found = records("--data walk --scale 0.25 --estimators rfa:map=positive --samples 4,256 --length 64 --head-dim 8");
  ASSERT_EQ(found.size(), 2U);
  // The error of D features falls as 1 / D: 64 times, and more than twice with any seed.
  EXPECT_LT(found[1]["mse"].get<double>(), 0.5 * found[0]["mse"].get<double>());
}

TEST_F(Approx, DataAndFeaturesOfOneSeedShareNoRandomNumbers) {
  // Of independent draws, 16 times as many leave a seventh of the error here.
  const json found = records("--data iid --scale 0.5 --estimators rfa:log=true --samples 16,256 --length 512 --seeds 3");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_LT(found[1]["mse"].get<double>(), 0.4 * found[0]["mse"].get<double>());
}

TEST_F(Approx, FiguresDependOnSeedsAndNotOnThreads) {
  const std::string flags = "--estimators rfa:map=positive --samples 8" + kTiny;
  const auto figures = [this](const std::string& arguments) {
    const json record = records(arguments)[0];
    return json({record["mse"], record["mse_stderr"], record["base_mse"], record["max_abs_error"]});
  };
  EXPECT_EQ(figures(flags + " --threads 1"), figures(flags + " --threads 2"));
  EXPECT_NE(figures(flags), figures(flags + " --seed 1"));
  EXPECT_NE(figures(flags), figures(flags + " --data iid"));
}

TEST_F(Approx, SpecsMayBeMixedWithNamesAndKeepTheirOwnSamples) {
  std::vector<std::string> specs;
  for (const json& record : records("--estimators rfa:samples=3,map=positive,softmax,rfa:map=positive "
                                    "--estimator 'rfa:draws=iid,map=positive' --estimator window:window=8 --samples 4" +
                                    kTiny)) {
    specs.push_back(record["spec"]);
  }
  EXPECT_EQ(specs, (std::vector<std::string>{"rfa:samples=3,map=positive", "softmax", "rfa:samples=4,map=positive",
                                             "rfa:samples=4,map=positive,draws=iid", "window:window=8"}));
}

TEST_F(Approx, CausalFormsAreComparedWithCausalAttention) {
  const json found =
      records("--causal --estimators softmax,window:window=40,rfa_gate:map=positive,rfa:map=positive --samples 8" + kTiny);
  ASSERT_EQ(found.size(), 4U);
  for (const json& record : found) EXPECT_EQ(record["causal"], true);
  EXPECT_LT(found[0]["mse"].get<double>(), 1e-10);
  EXPECT_LT(found[1]["mse"].get<double>(), 1e-10) << "a window of all tokens is exact";
  EXPECT_GT(found[2]["mse"].get<double>(), 1e-6);
}

TEST_F(Approx, TheErrorOfTheMeanIsTheBaseline) {
  for (const std::string causal : {"", "--causal "}) {
    const json found = records(causal + "--estimators mean,lara:samples=4" + kTiny);
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0]["spec"], "mean");
    EXPECT_EQ(found[0]["base_mse"], found[1]["base_mse"]);
    // The outputs are fp32: relative errors of some 1e-7.
    const double base = found[0]["base_mse"];
    EXPECT_NEAR(found[0]["mse"].get<double>(), base, 1e-6 * base);
  }
}

TEST_F(Approx, TrigFeaturesEstimateTheGaussianKernel) {
  const std::string flags = " --data iid --scale 2 --estimators rfa --samples 4096 --length 30 --head-dim 8 --seeds 1";
  const Result softmax = approx("--json" + flags);
  EXPECT_NE(softmax.err.find("--target gaussian"), std::string::npos) << softmax.err;
  const double against_softmax = json::parse(softmax.out)[0]["mse"];
  const json gaussian = records("--target gaussian" + flags);
  EXPECT_EQ(gaussian[0]["target"], "gaussian");
  // The error of 4,096 features is some 1 / 4096 of the variance of the values; softmax is another function altogether.
  EXPECT_LT(gaussian[0]["mse"].get<double>(), 2e-3);
  EXPECT_GT(against_softmax, 10 * gaussian[0]["mse"].get<double>());
}

TEST_F(Approx, LongSequencesAreComparedWithTheExactOp) {
  for (const std::string target : {"softmax", "gaussian"}) {
    const json found =
        records("--estimators softmax,rfa:map=positive --samples 4 --length 2049 --head-dim 4 --seeds 1 --target " + target);
    EXPECT_EQ(found[0]["length"], 2049);
    if (target == "softmax") {
      EXPECT_EQ(found[0]["mse"], 0.0) << "the same op";
    } else {
      EXPECT_GT(found[0]["mse"].get<double>(), 0);
    }
  }
}

TEST_F(Approx, ReadsArraysOfEveryRank) {
  const std::vector<float> q = normals(2 * 12 * 4 * 8, 1), k = normals(2 * 12 * 2 * 8, 2), v = normals(2 * 12 * 2 * 6, 3);
  const auto part = [](const std::vector<float>& all, size_t count) {
    return std::vector(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  };
  const auto run = [this](const std::string& a, const std::string& b, const std::string& c) {
    const json found = records("--estimators softmax --seeds 2 --input " + a + " " + b + " " + c);
    return found.empty() ? json() : found[0];
  };
  const json whole = run(write_npy("q4.npy", "(2, 12, 4, 8)", q), write_npy("k4.npy", "(2, 12, 2, 8)", k),
                         write_npy("v4.npy", "(2, 12, 2, 6)", v));
  EXPECT_EQ(whole["data"], "input");
  EXPECT_TRUE(whole["scale"].is_null());
  EXPECT_EQ(whole["batch"], 2);
  EXPECT_EQ(whole["heads"], 4);
  EXPECT_EQ(whole["kv_heads"], 2);
  EXPECT_EQ(whole["length"], 12);
  EXPECT_EQ(whole["head_dim"], 8);
  EXPECT_EQ(whole["value_dim"], 6);
  EXPECT_LT(whole["mse"].get<double>(), 1e-10);
  const json heads =
      run(write_npy("q3.npy", "(12, 4, 8)", part(q, 12 * 4 * 8)), write_npy("k3.npy", "(12, 2, 8)", part(k, 12 * 2 * 8)),
          write_npy("v3.npy", "(12, 2, 6)", part(v, 12 * 2 * 6)));
  EXPECT_EQ(heads["batch"], 1);
  EXPECT_EQ(heads["heads"], 4);
  EXPECT_LT(heads["mse"].get<double>(), 1e-10);
  const json plain = run(write_npy("q2.npy", "(12, 8)", part(q, 12 * 8)), write_npy("k2.npy", "(12, 8)", part(k, 12 * 8)),
                         write_npy("v2.npy", "(12, 6)", part(v, 12 * 6)));
  EXPECT_EQ(plain["heads"], 1);
  EXPECT_LT(plain["mse"].get<double>(), 1e-10);
}

TEST_F(Approx, ReadsSafetensorsByName) {
  const std::vector<float> q = normals(12 * 8, 1), k = normals(12 * 8, 2), v = normals(12 * 6, 3);
  const auto tensor = [](const char* name, int64_t dim, const std::vector<float>& values) {
    return TensorToWrite{.name = name, .dtype = "F32", .shape = {12, dim}, .bytes = std::as_bytes(std::span(values))};
  };
  const std::string path = (directory_ / "a.safetensors").string(), other = (directory_ / "b.safetensors").string();
  write_safetensors(path, std::vector{tensor("q", 8, q), tensor("k", 8, k), tensor("v", 6, v)});
  write_safetensors(other, std::vector{tensor("layer.k", 8, k), tensor("layer.q", 8, q), tensor("layer.v", 6, v)});
  const std::string npy =
      write_npy("q.npy", "(12, 8)", q) + " " + write_npy("k.npy", "(12, 8)", k) + " " + write_npy("v.npy", "(12, 6)", v);
  const std::string flags = "--estimators rfa:map=positive --samples 8 --seeds 2 --input ";
  const json expected = records(flags + npy)[0];
  EXPECT_EQ(records(flags + path)[0]["mse"], expected["mse"]);
  EXPECT_EQ(records(flags + other + " --names layer.q,layer.k,layer.v")[0]["mse"], expected["mse"]);
  EXPECT_EQ(records(flags + path)[0]["base_mse"], expected["base_mse"]);
  expect_exit(1, flags + other, "no tensor \"q\", expected one of layer.k, layer.q, layer.v");
}

TEST_F(Approx, BadInputsAreFailuresThatNameTheFile) {
  const std::string q = write_npy("q.npy", "(12, 8)", normals(12 * 8, 1));
  const std::string short_k = write_npy("k.npy", "(11, 8)", normals(11 * 8, 1));
  const std::string line = write_npy("line.npy", "(96,)", normals(96, 1));
  const std::string narrow = write_npy("narrow.npy", "(12, 4)", normals(12 * 4, 1));
  const std::string none = write_npy("none.npy", "(0, 8)", {});
  const std::string heads = write_npy("heads.npy", "(12, 3, 8)", normals(12 * 3 * 8, 1));
  const auto expect_failure = [&](const std::string& files, const std::string& message) {
    expect_exit(1, "--estimators softmax --input " + files, message);
  };
  expect_failure(q + " " + short_k + " " + q, short_k + ": 11 tokens, expected 12 (as " + q + " has)");
  expect_failure(q + " " + q + " " + short_k, short_k + ": 11 tokens, expected 12");
  expect_failure(q + " " + narrow + " " + q, narrow + ": 4 numbers per head, expected 8");
  expect_failure(line + " " + q + " " + q, line + ": shape [96], expected [T, D], [T, H, D] or [B, T, H, D]");
  expect_failure(none + " " + q + " " + q, none + ": shape [0, 8], expected at least one element");
  expect_failure(q + " " + heads + " " + heads, q + ": 1 heads, expected a multiple of 3");
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> values = normals(12 * 8, 1);
    values[3 * 8 + 5] = bad;
    const std::string broken = write_npy("broken.npy", "(12, 8)", values);
    expect_failure(q + " " + q + " " + broken, broken + ": element [3, 5] is ");
  }
  expect_failure(q + " " + q + " " + (directory_ / "missing.npy").string(), "missing.npy: cannot open");
  expect_failure(q, q + ": ");  // not safetensors
}

TEST_F(Approx, OverflowIsAFailureThatNamesTheEstimatorAndTheFigure) {
  // phi(q) . phi(k) is 1e60 with elu features: infinite in fp32, though every input is finite.
  const std::string huge = write_npy("huge.npy", "(12, 8)", std::vector<float>(12 * 8, 1e30F));
  const std::string v = write_npy("v.npy", "(12, 8)", normals(12 * 8, 1));
  const std::string input = "--input " + huge + " " + huge + " " + v;
  for (const char* format : {"--json", "--csv", "--md"}) {
    expect_exit(1, std::string(format) + " --seeds 1 --estimators softmax,rfa:map=elu " + input,
                "mse of rfa:map=elu (" + huge + ", " + huge + ", " + v + ") is nan, expected a finite number");
  }
  EXPECT_TRUE(records("--seeds 1 --estimators softmax " + input)[0]["mse"].is_number());
}

TEST_F(Approx, BadUsageExitsWithTwoAndSaysWhy) {
  expect_exit(2, "--estimators nope", "kind is \"nope\", expected one of softmax, window");
  expect_exit(2, "--estimators lara:frobs=3", "lara has no key \"frobs\"");
  expect_exit(2, "--estimators lara,,eva", "'lara,,eva' contains an empty value");
  expect_exit(2, "--estimator rfa:samples=0", "--estimator: samples of rfa is \"0\"");
  expect_exit(2, "--data cubes", "--data: 'cubes' is unknown, expected one of iid, walk, rw");
  expect_exit(2, "--scale 0", "--scale: '0' is not a positive number");
  expect_exit(2, "--scale 1,x", "--scale: 'x' is not a positive number");
  expect_exit(2, "--scale inf", "--scale: 'inf' is not a positive number");
  expect_exit(2, "--samples 0", "--samples: '0' is not a positive integer");
  expect_exit(2, "--seeds none", "--seeds: 'none' is not a positive integer");
  expect_exit(2, "--gate-logit nan", "--gate-logit: 'nan' is not a number");
  expect_exit(2, "--target cosine", "--target: 'cosine' is unknown, expected one of softmax, gaussian");
  expect_exit(2, "--threads 100000", "--threads: '100000' is too large, expected at most 1024");
  expect_exit(2, "--estimators rfa_gate", "rfa_gate is causal, expected --causal");
  expect_exit(2, "--causal --estimators rfa:log=true", "rfa:log=true has no causal form");
  expect_exit(2, "--input a.npy b.npy", "--input: 2 files, expected three .npy files (q, k, v) or one .safetensors file");
  expect_exit(2, "--input a.npy b.npy c.npy --length 5", "--length");
  expect_exit(2, "--names q,k", "--names: 2 names, expected three");
  expect_exit(2, "--json --csv", "excludes");
  expect_exit(2, "--show-matrix m.png --length 513", "--show-matrix: 513 tokens, expected at most 512");
  expect_exit(2, "extra", "extra");
}

TEST_F(Approx, SettingsThatDoNotFitTheDataAreBadUsage) {
  expect_exit(2, "--estimators rfa:map=relu" + kTiny, "whose weights are learned");
}

TEST_F(Approx, CsvQuotesSpecsAndMarkdownIsATable) {
  const Result csv = approx("--csv --estimators rfa:map=positive --samples 4" + kTiny);
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  EXPECT_EQ(csv.out.rfind("estimator,spec,samples,data,scale,", 0), 0U) << csv.out;
  EXPECT_NE(csv.out.find("\nrfa,\"rfa:samples=4,map=positive\",4,walk,1.0,false,"), std::string::npos) << csv.out;
  const Result markdown = approx("--estimators rfa:map=positive --samples 4" + kTiny);
  ASSERT_EQ(markdown.exit_code, 0) << markdown.err;
  EXPECT_NE(markdown.out.find("data walk"), std::string::npos);
  EXPECT_NE(markdown.out.find("| rfa "), std::string::npos);
}

TEST_F(Approx, PlotsErrorAgainstSamplesAndTime) {
  const fs::path plots = directory_ / "it's a plot";
  fs::create_directories(plots);
  const Result result = approx("--csv --estimators rfa:map=positive,window:window=8,softmax --samples 4,8 --plot \"" +
                               (plots / "error.svg").string() + "\"" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(plots)) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{"error.png", "error.svg", "error-time.png", "error-time.svg"}));
  EXPECT_EQ(contents(plots / "error.png").substr(1, 3), "PNG");
  EXPECT_EQ(contents(plots / "error-time.png").substr(1, 3), "PNG");
  for (const char* name : {"error.svg", "error-time.svg"}) {
    const std::string svg = contents(plots / name);
    EXPECT_NE(svg.find("</svg>"), std::string::npos) << name;
    EXPECT_NE(svg.find("rfa:map=positive"), std::string::npos) << name;
    EXPECT_NE(svg.find("mean of values"), std::string::npos) << name;
  }
}

// No part of a name is a command, and none is left out. Without a shell, which would be one more that reads it.
TEST_F(Approx, NamesOfPicturesMayHoldAnyCharacter) {
  const fs::path plots = directory_ / "a\n'\"`touch bad`$(touch bad)";
  fs::create_directories(plots);
  const std::string name = "b\nsystem 'touch bad'\n!touch bad\n";
  std::vector<std::string> words = {"raffia", "approx", "--estimators", "softmax", "--plot", (plots / name).string()};
  std::istringstream tiny(kTiny);
  for (std::string word; tiny >> word;) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string command = raffia::internal::raffia_command();
    if (::chdir(directory_.c_str()) == 0 && std::freopen("/dev/null", "w", stdout) != nullptr)
      ::execv(command.c_str(), arguments.data());
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::set<std::string> files;
  for (const auto& entry : fs::directory_iterator(plots)) files.insert(entry.path().filename());
  EXPECT_EQ(files, (std::set<std::string>{name + ".svg", name + ".png", name + "-time.svg", name + "-time.png"}));
  EXPECT_FALSE(fs::exists(directory_ / "bad"));
}

TEST_F(Approx, ShowsTheMatrixOfEachEstimatorBesideTheExactOne) {
  const Result result =
      approx("--csv --estimators rfa:map=positive --samples 4,8 --show-matrix '" + (directory_ / "m.png").string() + "'" + kTiny);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(contents(directory_ / "m.png").substr(1, 3), "PNG");
  const std::string svg = contents(directory_ / "m.svg");
  EXPECT_NE(svg.find("exact softmax"), std::string::npos);
  EXPECT_NE(svg.find("rfa:samples=8,map=positive"), std::string::npos);
}

TEST_F(Approx, PicturesThatCannotBeDrawnAreFailures) {
  const Result without = approx("--estimators softmax --plot '" + (directory_ / "p").string() + "'" + kTiny, "PATH=/nonexistent");
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_EQ(without.out, "") << "before measuring";
  EXPECT_NE(without.err.find("--plot: gnuplot is not installed (apt-get install gnuplot-nox)"), std::string::npos);
  const Result unwritable = approx("--csv --estimators softmax --plot '" + (directory_ / "missing" / "p").string() + "'" + kTiny);
  EXPECT_EQ(unwritable.exit_code, 1);
  EXPECT_NE(unwritable.err.find("--plot"), std::string::npos) << unwritable.err;
}

}  // namespace
}  // namespace raffia::internal
