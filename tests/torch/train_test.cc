// A training run from outside: files, resuming, refusals. Models are tiny, texts are made.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "support/temporary_directory.h"
#include "torch/tensor_file.h"
#include "torch/train/checkpoint.h"
#include "torch/train/log.h"
#include "torch/train/trainer.h"
#include "torch/train_case.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;

// Text with something to learn: counting, in words.
std::string counting(int numbers) {
  const char* const kDigits[] = {"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"};
  std::string text;
  for (int i = 0; i < numbers; ++i) {
    for (const char digit : std::to_string(i * 7)) text += std::string(kDigits[digit - '0']) + " ";
    text += "\n";
  }
  return text;
}

class TrainRun : public testing::Test {
 protected:
  TrainRun() : data_((directory_.path() / "text.txt").string()) {
    std::ofstream(data_) << counting(300);
    at::set_num_threads(1);
  }

  std::string out(const std::string& name) const { return (directory_.path() / name).string(); }

  FlagMap tiny(const std::string& name, const FlagMap& more = {}) const {
    FlagMap flags = {
        {"data", data_},    {"out", out(name)},    {"layers", "1"},         {"width", "16"},           {"heads", "2"},
        {"segment", "16"},  {"batch", "2"},        {"steps", "12"},         {"checkpoint-every", "3"}, {"eval-every", "6"},
        {"log-every", "2"}, {"tokenizer", "byte"}, {"valid-share", "0.02"}, {"threads", "1"}};
    for (const auto& [flag, value] : more) flags[flag] = value;
    return flags;
  }

  static Summary run(const FlagMap& flags, bool resume, Watcher& watcher) {
    TrainOptions options = resolve_options({Task::lm}, "", flags, resume, watcher);
    const auto task = make_task(options, options.resume);
    return train(options, *task, watcher, watcher.stop_signal());
  }
  static Summary run(const FlagMap& flags, bool resume = false) {
    Watcher watcher;
    return run(flags, resume, watcher);
  }

  // The error of a run, which there must be.
  static std::string error_of(const FlagMap& flags, bool resume = false) {
    try {
      run(flags, resume);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "the run was accepted";
    return "";
  }

  static fs::path checkpoint(const std::string& out, int64_t step) {
    return CheckpointStore(fs::path(out) / "trainer").path(step);
  }

  static std::vector<double> losses(const std::string& out) {
    std::vector<double> all;
    for (const auto& record : read_log(fs::path(out) / "log.jsonl")) {
      for (const char* field : {"loss", "valid_nll"}) {
        if (record.contains(field)) all.push_back(record[field]);
      }
    }
    return all;
  }

  static void expect_same_run(const std::string& a, const std::string& b, int64_t step) {
    for (const char* file : {"model.safetensors", "optimiser.safetensors", "carried.safetensors", "generator.safetensors"}) {
      const std::string bytes = read_file(checkpoint(a, step) / file);
      EXPECT_FALSE(bytes.empty()) << file;
      EXPECT_EQ(bytes, read_file(checkpoint(b, step) / file)) << file << " differs";
    }
    EXPECT_EQ(read_file(fs::path(a) / "model.safetensors"), read_file(fs::path(b) / "model.safetensors"));
    EXPECT_EQ(losses(a), losses(b));
  }

  // The log, without times.
  static std::vector<nlohmann::ordered_json> metrics_of_log(const std::string& out) {
    std::vector<nlohmann::ordered_json> records = read_log(fs::path(out) / "log.jsonl");
    for (auto& record : records) {
      record.erase("seconds");
      record.erase("tokens_per_second");
    }
    return records;
  }

  TemporaryDirectory directory_{"raffia_train"};
  std::string data_;
};

class EveryEstimator : public TrainRun, public testing::WithParamInterface<const char*> {};

TEST_P(EveryEstimator, ResumedRunEqualsTheWholeBitForBit) {
  const FlagMap more = {{"estimator", GetParam()}, {"dropout", "0.1"}, {"accumulate", "2"}, {"conv", "3"}};
  run(tiny("whole", more));
  // Stopped between two checkpoints of its own, and again in the middle of an interval of the log.
  for (const int64_t stop : {4, 9}) {
    Watcher watcher(stop);
    EXPECT_EQ(run(tiny("parts", more), true, watcher).end, End::interrupted);
  }
  EXPECT_EQ(run({{"out", out("parts")}}, true).end, End::complete);  // all the rest comes from the run itself
  expect_same_run(out("whole"), out("parts"), 12);
}

TEST_P(EveryEstimator, RunThatWasInterruptedInEvaluationsEqualsTheWholeBitForBit) {
  const FlagMap more = {
      {"estimator", GetParam()}, {"dropout", "0.1"}, {"valid-share", "0.3"}, {"steps", "60"}, {"eval-every", "20"}};
  run(tiny("whole", more));
  // In the first evaluation, again in the same one, just before the second, and in the last.
  for (const auto& [stop_after, stop_evaluation_of] : {std::pair{-1, 20}, {-1, 20}, {40, -1}, {-1, 60}}) {
    Watcher watcher(stop_after, stop_evaluation_of);
    const Summary summary = run(tiny("parts", more), true, watcher);
    const int64_t at = std::max(stop_after, stop_evaluation_of);
    EXPECT_EQ(summary.end, End::interrupted);
    EXPECT_EQ(summary.signal, SIGINT);
    EXPECT_EQ(summary.step, at);
    EXPECT_EQ(summary.checkpoint, at);
    EXPECT_TRUE(std::ranges::find(watcher.evaluations, at) == watcher.evaluations.end());
  }
  EXPECT_EQ(run({{"out", out("parts")}}, true).end, End::complete);
  expect_same_run(out("whole"), out("parts"), 60);
  EXPECT_EQ(metrics_of_log(out("whole")), metrics_of_log(out("parts")));
}

INSTANTIATE_TEST_SUITE_P(TrainRun, EveryEstimator,
                         testing::Values("softmax", "window:window=8", "rfa", "rfa_gate", "hybrid:window=4", "ra", "lara", "eva",
                                         "mean"),
                         [](const auto& estimator) {
                           const std::string spec = estimator.param;
                           return spec.substr(0, spec.find(':'));
                         });

TEST_F(TrainRun, CheckpointIsUsedEvenIfLaterStepsWereLost) {
  run(tiny("whole"));
  Watcher watcher(10);
  run(tiny("parts"), false, watcher);
  fs::remove_all(checkpoint(out("parts"), 10));  // as if the process had been killed: step 9 is the last, the log goes on to 10
  run(tiny("parts"), true);
  expect_same_run(out("whole"), out("parts"), 12);
}

TEST_F(TrainRun, EvaluationThatWasMadeAgainIsInTheLogOnceEvenIfItsCheckpointWasLost) {
  run(tiny("whole"));
  Watcher watcher(-1, 6);
  run(tiny("parts"), false, watcher);
  fs::copy(checkpoint(out("parts"), 6), out("before"), fs::copy_options::recursive);
  run(tiny("parts"), true);
  // As if the process had been killed after that evaluation.
  for (const int64_t step : {6, 9, 12}) fs::remove_all(checkpoint(out("parts"), step));
  fs::copy(out("before"), checkpoint(out("parts"), 6), fs::copy_options::recursive);
  Watcher again;
  run(tiny("parts"), true, again);
  EXPECT_EQ(again.evaluations, (std::vector<int64_t>{6, 12}));
  expect_same_run(out("whole"), out("parts"), 12);
  EXPECT_EQ(metrics_of_log(out("whole")), metrics_of_log(out("parts")));
  Watcher complete;
  EXPECT_EQ(run(tiny("parts"), true, complete).end, End::complete);
  EXPECT_TRUE(complete.evaluations.empty());
}

TEST_F(TrainRun, TestThatIsInterruptedIsMadeWhenTheRunIsResumed) {
  // Asks to stop in the test, which comes after the last evaluation.
  class InTest : public Watcher {
   public:
    void evaluating(int64_t /*done*/, int64_t /*total*/) override {
      if (!evaluations.empty() && evaluations.back() == 12) stop = true;
    }
  };
  const FlagMap more = {{"test", data_}};
  const Summary whole = run(tiny("whole", more));
  ASSERT_FALSE(whole.test.empty());
  InTest watcher;
  const Summary interrupted = run(tiny("parts", more), false, watcher);
  EXPECT_EQ(interrupted.end, End::interrupted);
  EXPECT_EQ(interrupted.signal, SIGINT);
  EXPECT_EQ(interrupted.checkpoint, 12);
  EXPECT_TRUE(interrupted.test.empty());
  const Summary resumed = run(tiny("parts", more), true);
  EXPECT_EQ(resumed.end, End::complete);
  EXPECT_EQ(resumed.test, whole.test);
  expect_same_run(out("whole"), out("parts"), 12);
}

TEST_F(TrainRun, InterruptedEvaluationCountsForPatienceOnceItIsMade) {
  const FlagMap more = {{"eval-every", "2"}, {"patience", "3"}, {"lr", "1e-30"}, {"checkpoint-every", "500"}, {"steps", "1000"}};
  const Summary whole = run(tiny("whole", more));
  Watcher watcher(-1, whole.step);
  EXPECT_EQ(run(tiny("parts", more), false, watcher).end, End::interrupted);
  const Summary resumed = run(tiny("parts", more), true);
  EXPECT_EQ(resumed.end, End::patience);
  EXPECT_EQ(resumed.step, whole.step);
  expect_same_run(out("whole"), out("parts"), whole.step);
}

TEST_F(TrainRun, TextWithoutSpacesIsResumedAfterAnEvaluation) {
  // Infinitely many nats per word: JSON has no such number.
  std::string text;
  for (int i = 0; i < 40000; ++i) text += static_cast<char>('a' + i * 7919 % 26);
  std::ofstream(data_) << text;
  const FlagMap more = {{"valid-share", "0.2"}};
  run(tiny("whole", more));
  Watcher watcher(7);
  run(tiny("parts", more), false, watcher);
  const Summary resumed = run(tiny("parts", more), true);
  EXPECT_EQ(resumed.step, 12);
  expect_same_run(out("whole"), out("parts"), 12);
  for (const auto& [name, value] : resumed.valid) EXPECT_TRUE(std::isfinite(value)) << name;
}

TEST_F(TrainRun, MetricsThatWereNotFiniteAreReadFromOlderCheckpoints) {
  Watcher watcher(7);
  run(tiny("run"), false, watcher);
  const fs::path facts = checkpoint(out("run"), 7) / "trainer.json";
  const auto change = [&](const auto& edit) {
    auto json = nlohmann::ordered_json::parse(read_file(facts));
    edit(json["best"]["metrics"]);
    std::ofstream(facts) << json.dump();
  };
  change([](auto& metrics) { metrics.erase("nll"); });
  EXPECT_NE(error_of(tiny("run"), true).find("trainer.json: best.metrics: there is no metric \"nll\""), std::string::npos);
  change([](auto& metrics) { metrics["nll"] = "low"; });
  EXPECT_NE(
      error_of(tiny("run"), true).find("trainer.json: field \"best.metrics.nll\" is a value of type string, expected a number"),
      std::string::npos);
  change([](auto& metrics) { metrics["nll"] = metrics["word_perplexity"] = nullptr; });
  EXPECT_EQ(run(tiny("run"), true).best_step, 12);  // any evaluation is better than one that was not finite
}

TEST_F(TrainRun, FilesOfARunThatAreHolesAreNotRead) {
  Watcher watcher(7);
  const FlagMap options = tiny("run", {{"keep", "1"}});
  run(options, false, watcher);
  const auto refused = [&](const fs::path& path, uint64_t bytes, const std::string& said) {
    const uint64_t before = fs::file_size(path);
    fs::resize_file(path, bytes);
    Watcher resumed;
    std::string heard;
    try {
      run(options, true, resumed);
    } catch (const Error& error) {
      heard = error.what();
    }
    EXPECT_NE((resumed.notes + heard).find(path.string() + ": " + said), std::string::npos) << resumed.notes << heard;
    EXPECT_FALSE(heard.empty()) << path;
    fs::resize_file(path, before);
  };
  constexpr uint64_t kHole = uint64_t{40} << 30;
  refused(fs::path(out("run")) / "trainer/options.json", kHole, "has 42,949,672,960 bytes, expected at most 16,777,216");
  refused(checkpoint(out("run"), 7) / "trainer.json", kHole, "has 42,949,672,960 bytes, expected at most 16,777,216");
  refused(fs::path(out("run")) / "log.jsonl", kHole, "has 42949672960 bytes, of which ");
  EXPECT_EQ(run(options, true).end, End::complete);
}

TEST_F(TrainRun, LearnsAndWritesAModelDirectory) {
  const Summary summary = run(tiny("run", {{"steps", "60"}, {"keep", "2"}, {"lr", "0.01"}}));
  const auto log = read_log(out("run") + "/log.jsonl");
  EXPECT_LT(log.back()["valid_nll"], 0.7 * log.front()["loss"].get<double>());
  EXPECT_EQ(summary.step, 60);
  EXPECT_EQ(summary.valid.front().first, "nll");
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json", "log.csv", "trainer/options.json"}) {
    EXPECT_TRUE(fs::exists(fs::path(out("run")) / file)) << file;
  }
  EXPECT_EQ(CheckpointStore(out("run") + "/trainer").steps(), (std::vector<int64_t>{60, 57}));
  EXPECT_EQ(read_file(checkpoint(out("run"), 60) / "model.safetensors").size(),
            read_file(out("run") + "/model.safetensors").size());
}

TEST_F(TrainRun, EndsEarlyWhenNothingImproves) {
  // With a learning rate of nearly 0, every evaluation but the first is worse or the same.
  const Summary summary =
      run(tiny("run", {{"steps", "1000"}, {"eval-every", "2"}, {"patience", "3"}, {"lr", "1e-30"}, {"checkpoint-every", "500"}}));
  EXPECT_EQ(summary.end, End::patience);
  EXPECT_EQ(summary.best_step, 2);
  EXPECT_EQ(summary.step, 8);
}

TEST_F(TrainRun, DamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  run(tiny("whole"));
  run(tiny("parts"));
  const fs::path weights = checkpoint(out("parts"), 12) / "optimiser.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() / 2] ^= 1;
  std::ofstream(weights, std::ios::binary) << bytes;
  fs::resize_file(checkpoint(out("parts"), 9) / "model.safetensors", 100);
  Watcher watcher;
  run(tiny("parts"), true, watcher);
  EXPECT_NE(watcher.notes.find(weights.string() + ": checksum"), std::string::npos) << watcher.notes;
  EXPECT_NE(watcher.notes.find("step-00000009/model.safetensors: 100 bytes, expected"), std::string::npos) << watcher.notes;
  EXPECT_NE(watcher.notes.find("resuming from step 6"), std::string::npos) << watcher.notes;
  expect_same_run(out("whole"), out("parts"), 12);
}

// The first tensor of a checkpoint's file whose name ends with `part` gets a NaN. The checksum is right: the file was written
// this way. Returns the tensor's name.
std::string put_nan(const fs::path& checkpoint, const std::string& file, std::string_view part) {
  NamedTensors tensors = load_tensors(checkpoint / file);
  const auto found = std::ranges::find_if(tensors, [part](const auto& each) { return each.first.ends_with(part); });
  EXPECT_NE(found, tensors.end()) << file << " has no " << part;
  if (found == tensors.end()) return "";
  found->second.view(-1)[0] = std::nan("");
  auto metadata = Safetensors::open(checkpoint / file).metadata();
  metadata.erase(kChecksumKey);  // written anew
  save_tensors(checkpoint / file, tensors, metadata);
  auto facts = nlohmann::ordered_json::parse(read_file(checkpoint / "trainer.json"));
  facts["files"][file]["xxh3"] = fmt::format("{:016x}", file_checksum(checkpoint / file));
  std::ofstream(checkpoint / "trainer.json") << facts.dump();
  return found->first;
}

TEST_F(TrainRun, NumbersOfACheckpointThatAreNotFiniteAreRefusedByTheNameOfTheirTensor) {
  const struct {
    const char *file, *part, *expected;
  } cases[] = {
      {"optimiser.safetensors", "/mean", "finite numbers"},
      {"optimiser.safetensors", "/square", "finite numbers"},
      {"model.safetensors", "weight", "finite numbers"},
      {"carried.safetensors", "memory", "numbers"},
  };
  for (const auto& [file, part, expected] : cases) {
    fs::remove_all(out("run"));
    Watcher watcher(7);
    const FlagMap options = tiny("run", {{"keep", "1"}});
    run(options, false, watcher);
    const fs::path directory = checkpoint(out("run"), 7);
    const std::string name = put_nan(directory, file, part);
    const std::string error = error_of(options, true);
    EXPECT_NE(error.find(fmt::format("{}: tensor \"{}\" contains nan, expected {}: the file is damaged",
                                     (directory / file).string(), name, expected)),
              std::string::npos)
        << error;
  }
}

TEST_F(TrainRun, WithoutAnySoundCheckpointItIsRefused) {
  run(tiny("run", {{"keep", "1"}}));
  fs::remove(checkpoint(out("run"), 12) / "carried.safetensors");
  EXPECT_NE(error_of(tiny("run", {{"keep", "1"}}), true).find("every checkpoint is damaged"), std::string::npos);
}

TEST_F(TrainRun, OtherDataTokenizerOrModelAreRefused) {
  run(tiny("run"));
  EXPECT_NE(error_of(tiny("run", {{"width", "32"}}), true).find("--width is 32, but the run in"), std::string::npos);
  EXPECT_NE(error_of(tiny("run", {{"tokenizer", "char"}}), true).find("--tokenizer is char"), std::string::npos);
  std::ofstream(data_, std::ios::app) << "one more line\n";
  EXPECT_NE(error_of(tiny("run"), true).find("was written with other data"), std::string::npos);
  std::ofstream(data_) << counting(300);
  EXPECT_EQ(run(tiny("run"), true).step, 12);

  run(tiny("chars", {{"tokenizer", "char"}}));
  fs::copy_file(out("chars") + "/tokenizer.json", out("run") + "/tokenizer.json", fs::copy_options::overwrite_existing);
  EXPECT_NE(error_of(tiny("run"), true).find("was written with another tokenizer"), std::string::npos);
}

TEST_F(TrainRun, ModelIsNeverOverwritten) {
  run(tiny("run"));
  const std::string before = read_file(out("run") + "/model.safetensors");
  EXPECT_NE(error_of(tiny("run")).find("already contains a model"), std::string::npos);
  EXPECT_EQ(read_file(out("run") + "/model.safetensors"), before);
}

TEST_F(TrainRun, WhatIsNotTextIsRefusedBeforeAnythingIsWritten) {
  std::ofstream(data_, std::ios::trunc);
  EXPECT_NE(error_of(tiny("run", {{"tokenizer", "char"}})).find("empty"), std::string::npos);
  EXPECT_NE(error_of(tiny("run")).find("empty"), std::string::npos);
  std::ofstream(data_, std::ios::binary) << std::string("abc\0\xff\xfe", 6) << std::string(5000, '\x80');
  EXPECT_NE(error_of(tiny("run", {{"tokenizer", "char"}})).find("byte 3 "), std::string::npos);
  EXPECT_NE(error_of(tiny("run", {{"data", data_ + ".none"}})).find(".none"), std::string::npos);
  std::ofstream(data_, std::ios::trunc) << "too short";
  EXPECT_NE(error_of(tiny("run")).find("too few"), std::string::npos);
  EXPECT_FALSE(fs::exists(out("run")));
}

TEST_F(TrainRun, WrongNamesAreRefusedByTheirFlag) {
  const auto expect_start = [&](const char* option, const char* value, const std::string& start) {
    const std::string said = error_of(tiny("run", {{option, value}}));
    EXPECT_EQ(said.rfind(start, 0), 0U) << said;
  };
  expect_start("estimator", "nope", "--estimator: kind is \"nope\", expected one of softmax");
  expect_start("norm", "nope", "--norm: \"nope\", expected one of layer");
  expect_start("feed-forward", "nope", "--feed-forward: \"nope\", expected one of gelu");
  expect_start("positions", "nope", "--positions: \"nope\", expected one of none");
  expect_start("tokenizer", "nope", "--tokenizer: \"nope\", expected byte, char");
}

TEST_F(TrainRun, UngatedMemoryIsNotCarried) {
  EXPECT_NE(error_of(tiny("run", {{"estimator", "rfa"}, {"stateful", "true"}})).find("cannot be carried"), std::string::npos);
}

TEST_F(TrainRun, OneProcessAtATime) {
  run(tiny("run"));
  Watcher watcher;
  TrainOptions options = resolve_options({Task::lm}, "", tiny("run"), true, watcher);
  const auto task = make_task(options, true);
  // While a run is under way, another one in the same directory is refused.
  class Second : public Observer {
   public:
    explicit Second(std::function<void()> action) : action_(std::move(action)) {}
    void started(int64_t, int64_t) override { action_(); }

   private:
    std::function<void()> action_;
  } second([&] { EXPECT_NE(error_of(tiny("run"), true).find("another process is training"), std::string::npos); });
  train(options, *task, second);
}

TEST_F(TrainRun, FullDiskEndsTheRunAndKeepsOlderCheckpoints) {
  const fs::path disk = directory_.path() / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=400k") != 0) GTEST_SKIP() << "mounting a small disk is not permitted here";
  struct Unmount {
    fs::path path;
    ~Unmount() { ::umount(path.c_str()); }
  } unmount{disk};
  const FlagMap flags = tiny("disk/run", {{"steps", "100"}, {"checkpoint-every", "1"}, {"keep", "100"}, {"eval-every", "100"}});
  const std::string error = error_of(flags);
  EXPECT_NE(error.find("No space left on device"), std::string::npos) << error;
  EXPECT_NE(error.find("the last checkpoint is step"), std::string::npos) << error;
  const CheckpointStore store(disk / "run" / "trainer");
  ASSERT_FALSE(store.steps().empty());
  for (const int64_t step : store.steps()) EXPECT_EQ(store.verify(step)["step"], step);
}

}  // namespace
}  // namespace raffia::internal::train
