// Images in a directory: IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files under their usual names, compressed or not,
// or image files with one directory per class.
#ifndef RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
#define RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_

#include <filesystem>
#include <span>
#include <string>

#include "io/data/datasets.h"

namespace raffia::internal::train {

// The training images or the test images. Throws InvalidArgument if there are no training images; test images are optional.
// `classes`: the allowed names of classes, for data with names; empty: those of the data.
LabelledImages read_images(const std::filesystem::path& directory, bool test, std::span<const std::string> classes = {});

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
