// Files of older versions: they load, continue with the same ids, and can be saved in the present form.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "raffia/memory.h"
#include "raffia/session.h"
#include "runtime/golden.h"
#include "support/paths.h"
#include "support/temporary_directory.h"

namespace raffia::internal {
namespace {

std::filesystem::path old_directory() { return golden_directory().parent_path() / "compat" / "0.1"; }

std::vector<std::string> old_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(old_directory())) {
    if (std::filesystem::exists(entry.path() / "config.json")) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

class OldModel : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path directory_ = old_directory() / GetParam();
  std::shared_ptr<const Model> model_ =
      Model::over(load_model_config(directory_ / "config.json"), bytes_of(directory_ / "model.safetensors"), nullptr, GetParam());
};

std::vector<int32_t> sampled(Session& session, size_t count) {
  std::vector<int32_t> ids;
  while (ids.size() < count) {
    ids.push_back(session.sample());
    session.step(ids.back());
  }
  return ids;
}

TEST_P(OldModel, SessionsContinueAndCanBeSaved) {
  const std::filesystem::path file = directory_ / "chat.session";
  if (model_->config().task != Task::lm) {
    EXPECT_FALSE(std::filesystem::exists(file));
    EXPECT_GT(model_->parameters(), 0);  // it loads, which is all that there is to it
    return;
  }
  std::vector<int32_t> expected;
  std::ifstream next(directory_ / "next.txt");
  for (int32_t id = 0; next >> id;) expected.push_back(id);
  ASSERT_EQ(expected.size(), 12U);

  Session session = Session::restore(model_, file);
  const TemporaryDirectory directory("compat_test");
  session.save(directory.path() / "again.session");
  EXPECT_EQ(sampled(session, expected.size()), expected);
  Session again = Session::restore(model_, directory.path() / "again.session");
  EXPECT_EQ(sampled(again, expected.size()), expected);
}

INSTANTIATE_TEST_SUITE_P(All, OldModel, testing::ValuesIn(old_models()), [](const auto& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(OldState, LoadsAsAMemory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(old_directory() / "states")) {
    const Memory memory = Memory::load(entry.path());
    EXPECT_EQ(memory.tokens(0).value_or(37), 37) << entry.path();
    EXPECT_EQ(memory.to_bytes(), bytes_of(entry.path())) << entry.path();
    ++count;
  }
  EXPECT_EQ(count, 4U);
}

}  // namespace
}  // namespace raffia::internal
