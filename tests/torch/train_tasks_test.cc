// Every task but language models, from its files to its figures: small data that can be learned, and a run that resumes.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "io/data/datasets.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "torch/train/trainer.h"
#include "torch/train_case.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;

class TrainTask : public testing::Test {
 protected:
  TrainTask() { at::set_num_threads(1); }

  // What tasks have in common here, and what `more` adds.
  FlagMap tiny(const std::string& name, const FlagMap& more) const {
    FlagMap flags = {{"out", (directory_.path() / name).string()},
                     {"layers", "1"},
                     {"width", "16"},
                     {"heads", "2"},
                     {"batch", "16"},
                     {"steps", "40"},
                     {"lr", "0.01"}};
    for (const auto& [flag, value] : more) flags[flag] = value;
    return flags;
  }

  static Summary run(TrainKind kind, const FlagMap& flags, Watcher& observer) {
    TrainOptions options = resolve_options(kind, "", flags, true, observer);
    const auto task = make_task(options, options.resume);
    return train(options, *task, observer, observer.stop_signal());
  }

  // Runs whole and in two parts, which end with the same weights.
  Summary run_both_ways(TrainKind kind, const FlagMap& more) const {
    Watcher never, soon(13);
    const Summary summary = run(kind, tiny("whole", more), never);
    EXPECT_EQ(run(kind, tiny("parts", more), soon).end, End::interrupted);
    EXPECT_EQ(run(kind, tiny("parts", more), never).end, End::complete);
    for (const char* file : {"model.safetensors", "optimiser.safetensors"}) {
      const fs::path last = fs::path("trainer") / "step-00000040" / file;
      const std::string bytes = read_file(directory_.path() / "whole" / last);
      EXPECT_FALSE(bytes.empty());
      EXPECT_EQ(bytes, read_file(directory_.path() / "parts" / last)) << name_of(kind) << ": " << file << " differs";
    }
    return summary;
  }

  static double metric(const Metrics& metrics, const std::string& name) {
    for (const auto& [found, value] : metrics) {
      if (found == name) return value;
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }

  TemporaryDirectory directory_{"raffia_train_tasks"};
};

TEST_F(TrainTask, ClassifierLearnsWhichWordsAreWhose) {
  std::mt19937 random(1);
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    const bool good = random() % 2 == 0;
    lines += good ? "good\t" : "bad\t";
    for (int j = 0; j < 8; ++j) lines += std::string(1, static_cast<char>((good ? 'a' : 'd') + random() % 4)) + " ";
    lines += "\n";
  }
  const std::string data = directory_.write("texts.tsv", lines).string();
  const Summary summary = run_both_ways({Task::classify}, {{"data", data}, {"test", data}, {"tokenizer", "word"}});
  EXPECT_GT(metric(summary.valid, "accuracy"), 0.9);
  EXPECT_GT(metric(summary.test, "accuracy"), 0.9);
  EXPECT_EQ(load_classes(directory_.path() / "whole"), (std::vector<std::string>{"bad", "good"}));
}

TEST_F(TrainTask, RunThatGoesOnEvaluatesAsItsModelSays) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += i % 2 == 0 ? "good\ta b c d e f\n" : "bad\tf e d c b a\n";
  const std::string data = directory_.write("texts.tsv", lines).string();
  const FlagMap flags = tiny("run", {{"data", data}, {"tokenizer", "word"}, {"estimator", "lara:samples=2"}});
  Watcher soon(2);
  EXPECT_EQ(run({Task::classify}, flags, soon).end, End::interrupted);
  const auto config_of_resumed = [&] {
    Watcher watcher;
    TrainOptions options = resolve_options({Task::classify}, "", flags, true, watcher);
    return make_task(options, options.resume)->model().config();
  };
  const fs::path file = directory_.path() / "run" / "config.json";
  EXPECT_EQ(config_of_resumed(), load_model_config(file));
  EXPECT_EQ(config_of_resumed().estimators[0].mean, std::nullopt);
  // As a run left it whose version drew samples in evaluation, too.
  std::string json = read_file(file);
  json.replace(json.find(",mean=auto"), std::string(",mean=auto").size(), "");
  std::ofstream(file) << json;
  EXPECT_EQ(config_of_resumed().estimators[0].mean, false);
}

TEST_F(TrainTask, TranslatorGetsBetter) {
  std::mt19937 random(1);
  std::string sources, targets;
  for (int i = 0; i < 200; ++i) {
    const std::string a(1, static_cast<char>('a' + random() % 5)), b(1, static_cast<char>('a' + random() % 5));
    sources += a + " " + b + " .\n";
    targets += "the " + a + " of the " + b + " .\n";
  }
  directory_.write("pairs.x", sources);
  directory_.write("pairs.y", targets);
  const std::string data = (directory_.path() / "pairs").string();
  const Summary summary = run_both_ways(
      {Task::translate},
      {{"data", data}, {"test", data}, {"source", "x"}, {"target", "y"}, {"tokenizer", "word"}, {"label-smoothing", "0"}});
  // An untrained model is at ln 12: 4 special tokens and 8 words.
  EXPECT_LT(metric(summary.valid, "nll"), std::log(12.0) / 2);
  EXPECT_GT(metric(summary.test, "bleu"), 20);
}

TEST_F(TrainTask, LongPairsAreCountedAndEvaluatedOn) {
  std::string source, target;
  for (int i = 0; i < 100; ++i) {
    const std::string line(i % 10 == 9 ? 40 : 8, static_cast<char>('a' + i % 7));
    source += line + "\n";
    target += line + "\n";
  }
  directory_.write("pairs.en", source);
  directory_.write("pairs.de", target);
  directory_.write("valid.en", std::string(8, 'a') + "\n" + std::string(40, 'b') + "\n");
  directory_.write("valid.de", std::string(8, 'a') + "\n" + std::string(40, 'b') + "\n");
  FlagMap flags = tiny("pairs", {{"data", (directory_.path() / "pairs").string()},
                                 {"valid", (directory_.path() / "valid").string()},
                                 {"tokenizer", "char"},
                                 {"segment", "16"},
                                 {"steps", "1"}});
  Watcher watcher;
  TrainOptions options = resolve_options({Task::translate}, "", flags, false, watcher);
  const auto task = make_task(options, false);
  const std::string said = task->describe();
  EXPECT_EQ(said.find("90 pairs ("), 0U) << said;
  EXPECT_NE(said.find("10 of 100 pairs are longer than --segment 16 tokens and were skipped"), std::string::npos) << said;
  EXPECT_NE(said.find(", 2 to evaluate on"), std::string::npos) << said;
  EXPECT_EQ(task->evaluate({}).back().first, "bleu");
  // Positions that are learned end with the segment: what is longer is cut, here and in raffia eval.
  flags["positions"] = "learned";
  flags["out"] += "-learned";
  TrainOptions learned = resolve_options({Task::translate}, "", flags, false, watcher);
  EXPECT_EQ(make_task(learned, false)->evaluate({}).back().first, "bleu");
}

TEST_F(TrainTask, ColumnsThatAreSwappedAreRefusedShortlyAndLabelColumnReadsThem) {
  std::string lines;
  for (int i = 0; i < 300; ++i)
    lines += "text " + std::to_string(i) + std::string(100, 'x') + (i % 2 == 0 ? "\tgood\n" : "\tbad\n");
  FlagMap flags = tiny("swapped", {{"data", directory_.write("swapped.tsv", lines).string()}, {"tokenizer", "char"}});
  const auto make = [&] {
    Watcher watcher;
    TrainOptions options = resolve_options({Task::classify}, "", flags, false, watcher);
    return make_task(options, false)->describe();
  };
  const std::string refused = refusal<FormatError>([&] { make(); });
  EXPECT_NE(refused.find("--label-column"), std::string::npos) << refused;
  EXPECT_LT(refused.size(), 400U);
  flags["label-column"] = "2";
  EXPECT_EQ(make().find("285 texts of 2 classes"), 0U) << make();
}

TEST_F(TrainTask, AnotherNumberOfClassesThanTheDataNameIsRefused) {
  std::string lines;
  for (int i = 0; i < 60; ++i) lines += i % 2 == 0 ? "good\ta b c d\n" : "bad\td c b a\n";
  const std::string texts = directory_.write("texts.tsv", lines).string(), images = (directory_.path() / "images").string();
  for (const char* name : {"day", "night"}) {
    fs::create_directories(fs::path(images) / name);
    for (int i = 0; i < 30; ++i) {
      directory_.write(std::string("images/") + name + "/" + std::to_string(i) + ".pgm",
                       "P5 8 8 255\n" + std::string(64, static_cast<char>(i)));
    }
  }
  const auto config_of = [&](TrainKind kind, const std::string& data, const std::string& classes, bool goes_on) {
    Watcher watcher;
    TrainOptions options = resolve_options(kind, "", tiny("run", {{"data", data}, {"classes", classes}}), false, watcher);
    if (kind.task == Task::classify) options.tokenizer = "char";
    return make_task(options, goes_on)->model().config();
  };
  for (const TrainKind kind : {TrainKind{Task::classify}, TrainKind{Task::image}}) {
    const std::string& data = kind.task == Task::classify ? texts : images;
    for (const char* classes : {"1", "5"}) {
      EXPECT_EQ(
          refusal<InvalidArgument>([&] { config_of(kind, data, classes, false); }),
          std::string("--classes is ") + classes + ", but " + data + " has 2 classes: they are its labels, so omit the flag");
    }
    for (const char* classes : {"0", "2"}) EXPECT_EQ(config_of(kind, data, classes, false).classes, 2);
  }
  // A run that an older version started goes on.
  EXPECT_EQ(config_of({Task::image}, images, "5", true).classes, 5);
}

TEST_F(TrainTask, RecallReportsAccuracyByPairsAndDistance) {
  const Summary summary = run_both_ways(kRecall, {{"pairs", "4"},
                                                  {"queries", "4"},
                                                  {"segment", "48"},
                                                  {"distances", "8,16"},
                                                  {"eval-distances", "8,16"},
                                                  {"alphabet", "8"},
                                                  {"eval-every", "40"}});
  const double chance = 1.0 / (4 + 64 + 8 + 8);
  for (const char* name : {"accuracy_pairs4_distance8", "accuracy_pairs4_distance16", "accuracy_pairs1_distance8"}) {
    EXPECT_GT(metric(summary.valid, name), chance) << name;
  }
}

}  // namespace
}  // namespace raffia::internal::train
