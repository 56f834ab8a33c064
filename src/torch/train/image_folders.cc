#include "torch/train/image_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "io/formats/picture.h"
#include "raffia/error.h"

namespace raffia::internal::train {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> pictures_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_regular_file() && is_picture(entry.path())) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

// Names of the directories with images.
std::vector<std::string> class_directories(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::is_directory(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !pictures_in(entry.path()).empty()) names.push_back(entry.path().filename().string());
  }
  return classes_of(names);
}

void add_image(const fs::path& file, int64_t label, LabelledImages& images) {
  const FloatArray image = read_picture(file);
  const int64_t channels = image.shape[0], height = image.shape[1], width = image.shape[2];
  if (images.count == 0) {
    images.channels = channels;
    images.size = height;
  }
  if (channels != images.channels || height != images.size || width != images.size) {
    throw FormatError(fmt::format("{}: has shape {}, expected [{}, {}, {}]{}", file.string(), to_string(image.shape),
                                  images.channels, images.size, images.size,
                                  images.count == 0 ? " (images are square)" : " as the images before it"));
  }
  for (const float value : image.values) images.pixels.push_back(static_cast<uint8_t>(std::lround(255 * value)));
  images.labels.push_back(label);
  ++images.count;
}

}  // namespace

fs::path find_image_folder(const fs::path& directory, bool test) {
  const fs::path part = directory / (test ? "test" : "train");
  if (!class_directories(part).empty()) return part;
  return test || class_directories(directory).empty() ? fs::path() : directory;
}

LabelledImages read_image_folder(const fs::path& folder, std::span<const std::string> classes) {
  const std::vector<std::string> found = class_directories(folder);
  LabelledImages images;
  images.names = classes.empty() ? found : std::vector<std::string>(classes.begin(), classes.end());
  const std::vector<int64_t> labels = class_ids(found, images.names, folder.string());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const fs::path& file : pictures_in(folder / found[i])) add_image(file, labels[i], images);
  }
  return images;
}

}  // namespace raffia::internal::train
