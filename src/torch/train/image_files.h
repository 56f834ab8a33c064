// Images in a directory under their usual names: IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files, compressed or not.
#ifndef RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
#define RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_

#include <filesystem>

#include "io/datasets.h"

namespace raffia::train {

// Those to learn from, or those to test with. Without the former it throws InvalidArgument; of the latter there may be none.
LabelledImages read_images(const std::filesystem::path& directory, bool test);

}  // namespace raffia::train

#endif  // RAFFIA_TORCH_TRAIN_IMAGE_FILES_H_
