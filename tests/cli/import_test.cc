// raffia import and raffia quantize, as a user runs them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_line.h"
#include "raffia/session.h"
#include "support/temporary_directory.h"
#include "support/tiny_llama.h"
#include "support/tiny_vocabulary.h"

namespace raffia::internal {
namespace {

class Import : public ::testing::Test {
 protected:
  Result run(const std::string& arguments) const { return run_raffia(directory_.path(), arguments, ""); }
  std::string at(const std::string& name) const { return fmt::format("'{}'", (directory_.path() / name).string()); }

  void write_llama2c() const {
    directory_.write("model.bin", TinyLlama::random(31).llama2c());
    directory_.write("tok.bin", tok_bin(scored_pieces({" ", "a", "b", "ab"})));
  }

  TemporaryDirectory directory_{"import_test"};
};

TEST_F(Import, Llama2cBecomesAModelThatCanBeQuantized) {
  write_llama2c();
  const Result imported = run(fmt::format("import llama2c {} {} {} --json", at("model.bin"), at("tok.bin"), at("model")));
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  const auto json = nlohmann::json::parse(imported.out);
  EXPECT_EQ(json["layers"], 2);
  EXPECT_EQ(json["kv_heads"], 2);
  EXPECT_EQ(json["tokenizer"], "scored");
  EXPECT_EQ(json["bytes"], std::filesystem::file_size(directory_.path() / "model" / "model.safetensors"));

  const Result again = run(fmt::format("import llama2c {} {} {}", at("model.bin"), at("tok.bin"), at("model")));
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("already contains a model (--force replaces it)"), std::string::npos) << again.err;
  EXPECT_EQ(run(fmt::format("import llama2c --force {} {} {}", at("model.bin"), at("tok.bin"), at("model"))).exit_code, 0);

  const Result quantized = run(fmt::format("quantize {} {} --json", at("model"), at("int8")));
  ASSERT_EQ(quantized.exit_code, 0) << quantized.err;
  const auto report = nlohmann::json::parse(quantized.out);
  EXPECT_EQ(report["type"], "int8");
  EXPECT_EQ(report["parameters"], json["parameters"]);
  EXPECT_EQ(report["bytes_before"], json["bytes"]);
  EXPECT_LT(report["bytes"], json["bytes"]);
  EXPECT_GT(report["row_error_mean"], 0.0);
  EXPECT_LE(report["row_error_mean"], report["row_error_worst"]);
  EXPECT_LT(report["row_error_worst"], 0.02);  // at most half of 1 / 127 of the largest, in rows that are far from flat
  EXPECT_EQ(run(fmt::format("quantize {} {}", at("int8"), at("int8"))).exit_code, 2);

  // int4 from int8, with the loss on a text. Rows of 32 columns have an error of about 1 / 8 / sqrt(12) of the largest.
  std::ofstream(directory_.path() / "text.txt") << "ab ab a b ab b\n<|endoftext|>\na ab a b b ab";
  const Result scored = run(fmt::format("quantize {} {} --type int4 --data {} --json", at("int8"), at("int4"), at("text.txt")));
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  const auto loss = nlohmann::json::parse(scored.out);
  EXPECT_EQ(loss["type"], "int4");
  EXPECT_GT(loss["row_error_mean"], 0.02);
  EXPECT_LT(loss["row_error_worst"], 0.2);
  EXPECT_GT(loss["loss_tokens"], 10);
  EXPECT_GT(loss["loss_before"], 0.0);
  EXPECT_NE(loss["loss"], loss["loss_before"]);
  EXPECT_NEAR(loss["loss"], loss["loss_before"], 0.2 * loss["loss_before"].get<double>());
  EXPECT_NE(run(fmt::format("quantize {} {} --data {}", at("model"), at("other"), at("missing.txt"))).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "other"));
  EXPECT_EQ(run(fmt::format("quantize {} {} --type int3", at("model"), at("other"))).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "other"));
}

// The example at the top of raffia/model.h, and raffia generate.
TEST_F(Import, TheLibraryReadsAndWritesTheTokensOfTheCommand) {
  write_llama2c();
  ASSERT_EQ(run(fmt::format("import llama2c {} {} {}", at("model.bin"), at("tok.bin"), at("my-model"))).exit_code, 0);
  const Result result =
      run(fmt::format("generate {} --prompt 'Once upon a time' --tokens 100 --json --state-out {}", at("my-model"), at("state")));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  const auto written = json["ids"].get<std::vector<int32_t>>();
  ASSERT_GT(written.size(), 5U);

  auto model = raffia::Model::load(directory_.path() / "my-model");
  raffia::Session session(model);
  session.prefill("Once upon a time");
  EXPECT_EQ(session.position(), json["prompt_tokens"].get<int64_t>());
  EXPECT_EQ(session.recent().front(), model->tokenizer().begin());
  std::vector<int32_t> ids;
  while (ids.size() < written.size()) {
    ids.push_back(session.sample());
    session.step(ids.back());
  }
  EXPECT_EQ(ids, written);
  if (json["reason"] == "end") {
    EXPECT_EQ(session.sample(), model->tokenizer().end());
  }
  session.save(directory_.path() / "library.state");
  EXPECT_EQ(contents(directory_.path() / "library.state"), contents(directory_.path() / "state"));
}

TEST_F(Import, BrokenFilesLeaveNothing) {
  write_llama2c();
  std::filesystem::resize_file(directory_.path() / "model.bin", 1000);
  const Result truncated = run(fmt::format("import llama2c {} {} {}", at("model.bin"), at("tok.bin"), at("model")));
  EXPECT_EQ(truncated.exit_code, 1);
  EXPECT_NE(truncated.err.find("model.bin: 1,000 bytes, expected"), std::string::npos) << truncated.err;
  directory_.write("model.bin", TinyLlama::random(31).llama2c());
  directory_.write("tok.bin", tok_bin(scored_pieces({" "})));
  const Result other = run(fmt::format("import llama2c {} {} {}", at("model.bin"), at("tok.bin"), at("model")));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("260 pieces, expected 263"), std::string::npos) << other.err;
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "model"));
  EXPECT_EQ(run(fmt::format("import llama2c {}", at("model.bin"))).exit_code, 2);
}

TEST_F(Import, WeightsThatAreNotFiniteAreRefusedByTheNameOfTheirFile) {
  TinyLlama tiny = TinyLlama::random(31);
  tiny.tensors.front().values[5] = std::numeric_limits<float>::quiet_NaN();
  directory_.write("model.bin", tiny.llama2c());
  directory_.write("tok.bin", tok_bin(scored_pieces({" ", "a", "b", "ab"})));
  const Result refused = run(fmt::format("import llama2c {} {} {}", at("model.bin"), at("tok.bin"), at("model")));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("model.bin: "), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("embedding.weight"), std::string::npos) << refused.err;
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "model"));
}

TEST_F(Import, HuggingFaceIsStoredAsAsked) {
  const TinyLlama tiny = TinyLlama::random(32);
  directory_.write("config.json", tiny.hf_config().dump());
  directory_.write("tokenizer.json", hf_byte_level({{"a", "b"}}).dump());
  tiny.write_hf_weights(directory_.path(), "BF16", 2);
  const Result kept = run(fmt::format("import hf {} {} --json", at(""), at("kept")));
  ASSERT_EQ(kept.exit_code, 0) << kept.err;
  EXPECT_EQ(nlohmann::json::parse(kept.out)["type"], "bf16");
  const Result widened = run(fmt::format("import hf {} {} --type f32 --json", at(""), at("wide")));
  ASSERT_EQ(widened.exit_code, 0) << widened.err;
  EXPECT_EQ(nlohmann::json::parse(widened.out)["type"], "f32");
  EXPECT_EQ(run(fmt::format("import hf {} {} --type f64", at(""), at("x"))).exit_code, 2);
  EXPECT_EQ(run(fmt::format("import hf {} {} --force", at(""), at("."))).exit_code, 2);  // over itself
  EXPECT_EQ(run(fmt::format("import hf {} {}", at("nowhere"), at("x"))).exit_code, 1);
}

}  // namespace
}  // namespace raffia::internal
