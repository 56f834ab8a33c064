// The golden models of tests/golden: tiny, of every task and estimator, with what the trainer answers.
#ifndef RAFFIA_TESTS_RUNTIME_GOLDEN_H_
#define RAFFIA_TESTS_RUNTIME_GOLDEN_H_

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "raffia/model.h"
#include "support/paths.h"

namespace raffia::internal {

// Names that begin with one of the prefixes ("lm-", "llama-"), sorted.
inline std::vector<std::string> golden_names(const std::vector<std::string>& prefixes) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory())) {
    const std::string name = entry.path().filename().string();
    const bool wanted = std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); });
    if (entry.is_directory() && wanted) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// Language models that read texts of any length.
inline std::vector<std::string> endless_golden_names() {
  std::vector<std::string> names = golden_names({"lm-", "llama-"});
  std::erase_if(names, [](const std::string& name) {
    return load_model_config(golden_directory() / name / "config.json").positions == Positions::learned;
  });
  return names;
}

inline std::vector<std::byte> bytes_of(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline std::shared_ptr<const Model> golden_model(const std::string& name, std::shared_ptr<const Tokenizer> tokenizer = nullptr) {
  const std::filesystem::path directory = golden_directory() / name;
  return Model::over(load_model_config(directory / "config.json"), bytes_of(directory / "model.safetensors"),
                     std::move(tokenizer), name);
}

class GoldenAnswer {
 public:
  explicit GoldenAnswer(const std::string& name) : file_(Safetensors::open(golden_directory() / name / "expected.safetensors")) {}

  // Row `row` of a tensor of ids [2, T], without padding.
  std::vector<int32_t> ids(const std::string& name, size_t row) const {
    const std::vector<std::byte> bytes = file_.read_bytes(name);
    std::vector<int64_t> all(bytes.size() / sizeof(int64_t));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    const size_t length = all.size() / 2;
    std::vector<int32_t> ids(all.begin() + static_cast<ptrdiff_t>(row * length),
                             all.begin() + static_cast<ptrdiff_t>((row + 1) * length));
    while (!ids.empty() && ids.back() == 0) ids.pop_back();
    return ids;
  }

  // Row `row` of a tensor [2, ..] of floats.
  std::vector<float> floats(const std::string& name, size_t row) const {
    const std::vector<float> all = file_.read(name).values;
    const auto length = static_cast<ptrdiff_t>(all.size() / 2);
    return {all.begin() + static_cast<ptrdiff_t>(row) * length, all.begin() + static_cast<ptrdiff_t>(row + 1) * length};
  }

 private:
  Safetensors file_;
};

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_RUNTIME_GOLDEN_H_
