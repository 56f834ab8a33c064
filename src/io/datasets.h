// Files of examples, read whole and checked: labelled texts, parallel texts, labelled images. Files may be compressed (gz, xz).
// All throw IoError, and FormatError that names the file and the line or byte.
#ifndef RAFFIA_IO_DATASETS_H_
#define RAFFIA_IO_DATASETS_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace raffia {

// Lines "label TAB text", or "label TAB text TAB text" for pairs. Columns count from 1: label_column = 1 and text_column = 4
// reads "label TAB rating TAB id TAB text".
struct LabelledTextFormat {
  int label_column = 1;
  int text_column = 2;
  bool pairs = false;   // the column after text_column is a second text
  bool header = false;  // the first line names the columns
};

struct LabelledTexts {
  std::vector<std::string> labels, texts;
  std::vector<std::string> seconds = {};  // of pairs
};

LabelledTexts read_labelled_texts(const std::filesystem::path& path, const LabelledTextFormat& format = {});

// The distinct labels: in the order of their numbers where all are numbers, else in the order of bytes.
std::vector<std::string> classes_of(std::span<const std::string> labels);

// The place of each label among the classes. `where` names the labels in the error for one that is not among them.
std::vector<int64_t> class_ids(std::span<const std::string> labels, std::span<const std::string> classes, std::string_view where);

// The file of a model directory that names the classes, a line each, in the order of their numbers.
inline constexpr std::string_view kClassesFile = "classes.txt";
void save_classes(std::span<const std::string> classes, const std::filesystem::path& directory);
std::vector<std::string> load_classes(const std::filesystem::path& directory);

// Two files that are aligned line by line. Lines that are empty on both sides are left out; those empty on one side are errors.
struct ParallelText {
  std::vector<std::string> sources, targets;
};
ParallelText read_parallel_text(const std::filesystem::path& sources, const std::filesystem::path& targets);

// Square images of bytes.
struct LabelledImages {
  int64_t count = 0, channels = 0, size = 0;
  std::vector<uint8_t> pixels;  // [count, channels, size, size]
  std::vector<int64_t> labels;  // [count]

  int64_t classes() const;  // one more than the highest label
};

// IDX files, as MNIST and Fashion-MNIST come: images [N, S, S] and labels [N] of unsigned bytes.
LabelledImages read_idx_images(const std::filesystem::path& images, const std::filesystem::path& labels);

// The images alone; there are no labels then.
LabelledImages read_idx_pixels(const std::filesystem::path& images);

// CIFAR-10's binary files, one after the other: records of a label byte and 3 x 32 x 32 bytes.
LabelledImages read_cifar_images(std::span<const std::filesystem::path> paths);

}  // namespace raffia

#endif  // RAFFIA_IO_DATASETS_H_
