// Runs that start from a model directory.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "raffia/tokenizer.h"
#include "support/temporary_directory.h"
#include "torch/train/checkpoint.h"
#include "torch/train/texts.h"
#include "torch/train/trainer.h"
#include "torch/train_case.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;

class InitialModel : public testing::Test {
 protected:
  InitialModel() {
    at::set_num_threads(1);
    std::ofstream text(path("text.txt"));
    for (int i = 0; i < 400; ++i) text << i * 7 << " and " << i * 11 << "\n";
    text.close();
    run(flags("base", {{"layers", "1"},
                       {"width", "16"},
                       {"heads", "4"},
                       {"kv-heads", "2"},
                       {"norm", "rms"},
                       {"feed-forward", "swiglu"},
                       {"no-bias", "true"},
                       {"untied", "true"},
                       {"estimator", "rfa_gate:samples=8"},
                       {"tokenizer", "char"}}));
  }

  std::string path(const std::string& name) const { return (directory_.path() / name).string(); }

  FlagMap flags(const std::string& out, const FlagMap& more) const {
    FlagMap all = {
        {"data", path("text.txt")}, {"out", path(out)},        {"segment", "16"},   {"batch", "2"},     {"steps", "8"},
        {"threads", "1"},           {"checkpoint-every", "2"}, {"eval-every", "4"}, {"log-every", "2"}, {"valid-share", "0.02"}};
    for (const auto& [name, value] : more) all[name] = value;
    return all;
  }
  FlagMap from_base(const std::string& out, FlagMap more = {}) const {
    more["init"] = path("base");
    return flags(out, more);
  }

  static Summary run(const FlagMap& flags, bool resume = false, int64_t stop_after = -1) {
    Watcher watcher(stop_after);
    TrainOptions options = resolve_options({Task::lm}, "", flags, resume, watcher);
    const auto task = make_task(options, options.resume);
    return train(options, *task, watcher, watcher.stop_signal());
  }

  static std::string error_of(const FlagMap& flags) {
    try {
      run(flags);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory directory_{"raffia_init"};
};

TEST_F(InitialModel, GivesWeightsSizesAndTokenizer) {
  Watcher watcher;
  TrainOptions options = resolve_options({Task::lm}, "", from_base("more"), false, watcher);
  EXPECT_EQ(options.width, 16);
  EXPECT_EQ(options.kv_heads, 2);
  EXPECT_EQ(options.norm, "rms");
  const auto task = make_task(options, false);
  EXPECT_EQ(to_json(task->model().config()), to_json(load_model_config(path("base") + "/config.json")));
  nn::save_weights(task->model(), path("copy.safetensors"), task->fingerprints().tokenizer);
  EXPECT_EQ(read_file(path("copy.safetensors")), read_file(path("base") + "/model.safetensors"));
  task->save(directory_.path());
  EXPECT_EQ(read_file(path("tokenizer.json")), read_file(path("base") + "/tokenizer.json"));
}

TEST_F(InitialModel, OptionsOfTheModelMayBeSaidAgainButNotChanged) {
  EXPECT_EQ(error_of(from_base("same", {{"width", "16"}, {"tokenizer", "char"}, {"positions", "auto"}})), "");
  EXPECT_EQ(
      error_of(from_base("other", {{"width", "32"}})),
      "--width is 32, but the model in " + path("base") + " (--init) has 16: omit the flag, or start a new model without --init");
  EXPECT_NE(error_of(from_base("other", {{"tokenizer", "byte"}})).find("--tokenizer is byte, but the model in"),
            std::string::npos);
  EXPECT_NE(error_of(from_base("other", {{"estimator", "softmax"}})).find("has rfa_gate:samples=8"), std::string::npos);
}

TEST_F(InitialModel, IsNeededNoMoreByARunThatGoesOn) {
  run(from_base("whole"));
  EXPECT_EQ(run(from_base("parts"), true, 5).end, End::interrupted);
  fs::rename(path("base"), path("elsewhere"));
  EXPECT_EQ(run({{"out", path("parts")}}, true).end, End::complete);
  const auto last = [&](const std::string& out) { return CheckpointStore(fs::path(path(out)) / "trainer").path(8); };
  EXPECT_EQ(read_file(last("whole") / "model.safetensors"), read_file(last("parts") / "model.safetensors"));
}

TEST_F(InitialModel, OfEightBitsIsRefused) {
  const std::byte values[4] = {};
  const TensorToWrite tensor{"embedding.weight", "I8", {2, 2}, values};
  write_safetensors(path("base") + "/model.safetensors", std::vector{tensor}, {});
  EXPECT_NE(error_of(from_base("more")).find("quantized models cannot be trained"), std::string::npos);
}

// A vocabulary from elsewhere, of bytes.
class BeginningTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "elsewhere"; }
  int64_t vocabulary() const override { return 256; }
  std::vector<int32_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::string decode(std::span<const int32_t>) const override { return ""; }
  void save(const fs::path&) const override {}
  int32_t begin() const override { return 1; }
  bool begins_texts() const override { return true; }
  uint64_t fingerprint() const override { return 0; }
};

TEST(TextsOfAFile, BeginWhereTheVocabularySaysSo) {
  const BeginningTokenizer tokenizer;
  EXPECT_EQ(encode_text(tokenizer, "ab\n<|endoftext|>\n c\n"), (std::vector<int32_t>{1, 'a', 'b', 1, 'c'}));
  EXPECT_EQ(encode_text(tokenizer, "<|endoftext|>\n<|endoftext|>ab"), (std::vector<int32_t>{1, 'a', 'b'}));
  const std::string_view text = "ab";
  const auto own = train_tokenizer(parse_tokenizer_spec("byte"), std::vector{text});
  EXPECT_EQ(encode_text(*own, text), own->encode(text));
}

}  // namespace
}  // namespace raffia::internal::train
