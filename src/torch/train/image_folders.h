// Image files (.png, .jpg, .jpeg, .pgm, .ppm) with one directory per class: DIR/CLASS/FILE, or
// DIR/train/CLASS/FILE and DIR/test/CLASS/FILE.
#ifndef RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_
#define RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_

#include <filesystem>
#include <span>
#include <string>

#include "io/data/datasets.h"

namespace raffia::internal::train {

// The directory that contains the classes: DIR/train or DIR itself, DIR/test for test data; empty if there are no images.
std::filesystem::path find_image_folder(const std::filesystem::path& directory, bool test);

// All images must be square, of the same size, and all grey or all in colour; classes and files are sorted by name.
// `classes`: the allowed names, in the order of their numbers; empty: those of the directories. Throws FormatError.
LabelledImages read_image_folder(const std::filesystem::path& folder, std::span<const std::string> classes);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_IMAGE_FOLDERS_H_
