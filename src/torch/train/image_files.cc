#include "torch/train/image_files.h"

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"

namespace raffia::train {
namespace {

namespace fs = std::filesystem;

// As it is, or compressed; empty if there is neither.
fs::path find_file(const fs::path& directory, const std::string& name) {
  for (const char* ending : {"", ".gz", ".xz"}) {
    if (fs::exists(directory / (name + ending))) return directory / (name + ending);
  }
  return {};
}

}  // namespace

LabelledImages read_images(const fs::path& directory, bool test) {
  const std::string prefix = test ? "t10k" : "train";
  const fs::path images = find_file(directory, prefix + "-images-idx3-ubyte");
  const fs::path labels = find_file(directory, prefix + "-labels-idx1-ubyte");
  if (!images.empty() && !labels.empty()) return read_idx_images(images, labels);
  std::vector<fs::path> parts;
  for (const std::string& name : test ? std::vector<std::string>{"test_batch.bin"}
                                      : std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                                 "data_batch_4.bin", "data_batch_5.bin"}) {
    if (fs::path part = find_file(directory, name); !part.empty()) parts.push_back(std::move(part));
  }
  if (!parts.empty()) return read_cifar_images(parts);
  require(test,
          "--data: {} holds no images, expected train-images-idx3-ubyte and train-labels-idx1-ubyte (may end in .gz), or "
          "data_batch_1.bin",
          directory.string());
  return {};
}

}  // namespace raffia::train
