#include "model/model_directory.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "io/formats/image.h"
#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

namespace fs = std::filesystem;

TEST(ModelDirectory, FilesOfAModelAreKnownUnderAnyName) {
  const TemporaryDirectory directory("model_directory_test");
  const fs::path model = directory.path() / "model";
  fs::create_directories(model / "trainer");
  for (const char* name : {"config.json", "model.safetensors", "log.jsonl", "trainer/options.json"}) {
    directory.write("model/" + std::string(name), "x");
  }
  directory.write("model/story.state", std::string(kSessionImage.magic) + "...");
  directory.write("other", "x");
  fs::create_symlink(model / "model.safetensors", directory.path() / "link");
  fs::create_hard_link(model / "config.json", directory.path() / "hard");
  fs::create_directory_symlink(model, directory.path() / "again");

  for (const char* name : {"model/model.safetensors", "model/config.json", "model/log.jsonl", "model/trainer/options.json",
                           "link", "hard", "again/model.safetensors", "model/../model/config.json", "model/classes.txt"}) {
    EXPECT_TRUE(is_file_of_model(directory.path() / name, model)) << name;
  }
  for (const char* name : {"model/story.state", "model/new.state", "other", "new", "missing/config.json", "config.json"}) {
    EXPECT_FALSE(is_file_of_model(directory.path() / name, model)) << name;
  }
}

TEST(ModelDirectory, FilesOfOtherModelsAndRunsAreKnown) {
  const TemporaryDirectory directory("model_directory_test");
  const fs::path model = directory.path() / "model";
  fs::create_directories(model);
  fs::create_directories(directory.path() / "other/trainer/step-00000005");
  fs::create_directories(directory.path() / "untrained");
  for (const char* name : {"other/config.json", "other/model.safetensors", "other/log.jsonl", "other/trainer/options.json",
                           "other/trainer/step-00000005/trainer.json", "other/trainer/step-00000005/optimiser.safetensors",
                           "untrained/config.json", "untrained/notes"}) {
    directory.write(name, "x");
  }
  directory.write("other/story.state", std::string(kSessionImage.magic) + "...");
  fs::create_symlink(directory.path() / "other/model.safetensors", directory.path() / "link");
  for (const fs::path& own : {model, fs::path()}) {
    for (const char* name :
         {"other/config.json", "other/model.safetensors", "other/tokenizer.json", "link", "other/log.jsonl",
          "other/trainer/options.json", "other/trainer/step-00000005/optimiser.safetensors", "untrained/model.safetensors"}) {
      EXPECT_TRUE(is_file_of_model(directory.path() / name, own)) << name;
    }
    for (const char* name : {"other/story.state", "other/new.state", "untrained/notes", "model.safetensors"}) {
      EXPECT_FALSE(is_file_of_model(directory.path() / name, own)) << name;
    }
  }
}

TEST(ModelDirectory, ChecksumOfAnOldConfigurationIsThatOfItsFile) {
  const fs::path file = golden_directory().parent_path() / "compat" / "0.1" / "lm-gate" / "config.json";
  const std::string text = read_file(file);
  EXPECT_EQ(seals_of(load_model_config(file), 0).at("config"), hexadecimal(data_checksum(std::as_bytes(std::span(text)))));
}

}  // namespace
}  // namespace raffia::internal
