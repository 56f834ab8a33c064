// Data sets, read whole and checked: labelled texts, parallel texts, labelled images. Files may be compressed (gz, xz).
// All throw IoError, and FormatError, which names the file and the line or byte.
#ifndef RAFFIA_IO_DATA_DATASETS_H_
#define RAFFIA_IO_DATA_DATASETS_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace raffia::internal {

// The file with this name, or compressed with .gz or .xz added. Empty if there is none of them.
std::filesystem::path find_data_file(const std::filesystem::path& path);

// Lines "label TAB text", or "label TAB text TAB text" for pairs. Columns count from 1: label_column = 1 and text_column = 4
// reads "label TAB rating TAB id TAB text".
struct LabelledTextFormat {
  int label_column = 1;
  std::string label_name = {};  // if not empty, the label is in the column with this name in the first line
  int text_column = 0;          // 0: the column after the label, or the first one if the label is in the last
  bool pairs = false;           // the column after text_column is a second text
  bool header = false;          // the first line has column names; implied by label_name

  // Parses "2" or "sentiment".
  void set_label(const std::string& number_or_name);
};

struct LabelledTexts {
  std::vector<std::string> labels, texts;
  std::vector<std::string> seconds = {};  // of pairs
};

LabelledTexts read_labelled_texts(const std::filesystem::path& path, const LabelledTextFormat& format = {});

// The distinct labels: in numerical order if all are numbers, else in the order of bytes.
std::vector<std::string> classes_of(std::span<const std::string> labels);

// Throws FormatError for labels that look like texts and not like classes: too long, or nearly all different.
void require_classes(std::span<const std::string> labels, std::string_view where);

// The index of each label in the classes. `where` names the labels in the error for a label that is not one of the classes.
std::vector<int64_t> class_ids(std::span<const std::string> labels, std::span<const std::string> classes, std::string_view where);

// The file of a model directory with the names of the classes, one per line, in the order of their numbers.
inline constexpr std::string_view kClassesFile = "classes.txt";
void save_classes(std::span<const std::string> classes, const std::filesystem::path& directory);
std::vector<std::string> load_classes(const std::filesystem::path& directory);

// Two files aligned by line. Lines that are empty in both are skipped; lines that are empty in one only are errors.
struct ParallelText {
  std::vector<std::string> sources, targets;
};
ParallelText read_parallel_text(const std::filesystem::path& sources, const std::filesystem::path& targets);

// The files PREFIX.source and PREFIX.target, each of which may be compressed: train.en or train.en.gz.
ParallelText read_parallel_text(const std::string& prefix, const std::string& source, const std::string& target);

// Square images of bytes.
struct LabelledImages {
  int64_t count = 0, channels = 0, size = 0;
  std::vector<uint8_t> pixels;          // [count, channels, size, size]
  std::vector<int64_t> labels;          // [count]
  std::vector<std::string> names = {};  // of the classes, if the data have names

  int64_t classes() const;  // one more than the highest label
};

// IDX files, the format of MNIST and Fashion-MNIST: images [N, S, S] and labels [N] of unsigned bytes.
LabelledImages read_idx_images(const std::filesystem::path& images, const std::filesystem::path& labels);

// Only the images, without labels.
LabelledImages read_idx_pixels(const std::filesystem::path& images);

// CIFAR-10's binary files, concatenated: records of a label byte and 3 x 32 x 32 bytes.
LabelledImages read_cifar_images(std::span<const std::filesystem::path> paths);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_DATA_DATASETS_H_
