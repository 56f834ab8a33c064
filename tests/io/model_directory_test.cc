#include "model/model_directory.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "io/formats/image.h"
#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace raffia {
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

TEST(ModelDirectory, ChecksumOfAnOldConfigurationIsThatOfItsFile) {
  const fs::path file = golden_directory().parent_path() / "compat" / "0.1" / "lm-gate" / "config.json";
  const std::string text = read_file(file);
  EXPECT_EQ(seals_of(load_model_config(file), 0).at("config"), hexadecimal(data_checksum(std::as_bytes(std::span(text)))));
}

}  // namespace
}  // namespace raffia
