// Images as files of their own (.png, .jpg, .jpeg, .pgm, .ppm), in a directory for each class: DIR/CLASS/FILE, or
// DIR/train/CLASS/FILE and DIR/test/CLASS/FILE.
#ifndef RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_
#define RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_

#include <filesystem>
#include <span>
#include <string>

#include "io/datasets.h"

namespace raffia::train {

// Where the directories of classes are: DIR/train or DIR itself, DIR/test for a test; empty where there are no images.
std::filesystem::path find_image_folder(const std::filesystem::path& directory, bool test);

// All images are square, of one size, and grey or in colour alike; classes and files come in the order of their names.
// `classes`: the names that there may be, in the order of their numbers; empty: those of the directories. Throws FormatError.
LabelledImages read_image_folder(const std::filesystem::path& folder, std::span<const std::string> classes);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_
