#include "torch/train/image_files.h"

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "torch/train/image_folders.h"

namespace raffia::internal::train {
namespace fs = std::filesystem;

LabelledImages read_images(const fs::path& directory, bool test, std::span<const std::string> classes) {
  const std::string prefix = test ? "t10k" : "train";
  const fs::path images = find_data_file(directory / (prefix + "-images-idx3-ubyte"));
  const fs::path labels = find_data_file(directory / (prefix + "-labels-idx1-ubyte"));
  if (!images.empty() && !labels.empty()) return read_idx_images(images, labels);
  std::vector<fs::path> parts;
  for (const std::string& name : test ? std::vector<std::string>{"test_batch.bin"}
                                      : std::vector<std::string>{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                                                 "data_batch_4.bin", "data_batch_5.bin"}) {
    if (fs::path part = find_data_file(directory / name); !part.empty()) parts.push_back(std::move(part));
  }
  if (!parts.empty()) return read_cifar_images(parts);
  if (const fs::path folder = find_image_folder(directory, test); !folder.empty()) return read_image_folder(folder, classes);
  require(test,
          "{}: has no images, expected train-images-idx3-ubyte and train-labels-idx1-ubyte (may end in .gz), or "
          "data_batch_1.bin, or a directory of .png, .jpg, .pgm or .ppm files for each class",
          directory.string());
  return {};
}

}  // namespace raffia::internal::train
