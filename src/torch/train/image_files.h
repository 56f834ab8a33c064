// Images in a directory: IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files under their usual names, compressed or not,
// or files of their own in a directory for each class.
#ifndef RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
#define RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_

#include <filesystem>
#include <span>
#include <string>

#include "io/datasets.h"

namespace raffia::train {

// Those to learn from, or those to test with. Without the former it throws InvalidArgument; of the latter there may be none.
// `classes`: names of the classes that there may be, for data that name them; empty: as the data say.
LabelledImages read_images(const std::filesystem::path& directory, bool test, std::span<const std::string> classes = {});

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
