#include "io/data/datasets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/check.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal {
namespace {

std::vector<std::string_view> columns_of(std::string_view line) {
  std::vector<std::string_view> columns;
  while (true) {
    const size_t tab = line.find('\t');
    columns.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return columns;
    line.remove_prefix(tab + 1);
  }
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size()) return {};
  return number;
}

// Shortens text for an error: labels may be whole articles if the column is wrong.
std::string shortened(std::string_view text) {
  constexpr size_t kMax = 40;
  if (text.size() <= kMax) return std::string(text);
  const std::string_view start = text.substr(0, kMax);
  return std::string(start.substr(0, end_of_whole_characters(start))) + "...";
}

// Column indices from 0, after the first line was read.
struct Columns {
  size_t label = 0, text = 0;
  size_t needed = 0;  // minimum number of columns of a line
};

Columns find_columns(const std::filesystem::path& path, std::string_view first_line, const LabelledTextFormat& format) {
  const std::vector<std::string_view> names = columns_of(first_line);
  Columns columns{.label = static_cast<size_t>(format.label_column - 1)};
  if (!format.label_name.empty()) {
    const auto found = std::ranges::find(names, format.label_name);
    if (found == names.end()) {
      throw FormatError(fmt::format("{}: there is no column \"{}\", the first line has {} columns: {}", path.string(),
                                    shortened(format.label_name), names.size(),
                                    shortened(fmt::format("{}", fmt::join(names, ", ")))));
    }
    columns.label = static_cast<size_t>(found - names.begin());
  }
  const size_t texts = format.pairs ? 2 : 1;
  columns.text = format.text_column > 0                                       ? static_cast<size_t>(format.text_column - 1)
                 : columns.label > 0 && columns.label + texts >= names.size() ? 0
                                                                              : columns.label + 1;
  if (columns.label >= columns.text && columns.label < columns.text + texts) {
    throw InvalidArgument(fmt::format("{}: column {} is both label and text", path.string(), columns.label + 1));
  }
  columns.needed = std::max(columns.label, columns.text + texts - 1) + 1;
  return columns;
}

// An IDX file of unsigned bytes: two zeros, the type, the rank, and the extents as big-endian 32-bit numbers.
struct Idx {
  std::vector<int64_t> shape;
  std::string bytes;
  size_t begin = 0;  // of the values
};

Idx read_idx(const std::filesystem::path& path, size_t rank) {
  constexpr unsigned char kUnsignedByte = 0x08;
  Idx idx = {.shape = {}, .bytes = read_data_file(path, kMaxBytesOfDataset), .begin = 4 + 4 * rank};
  const auto byte = [&idx](size_t at) { return static_cast<unsigned char>(idx.bytes[at]); };
  const auto refuse = [&path](const std::string& what) { throw FormatError(fmt::format("{}: {}", path.string(), what)); };
  if (idx.bytes.size() < idx.begin)
    refuse(fmt::format("has {} bytes, expected at least {}: not IDX", idx.bytes.size(), idx.begin));
  if (byte(0) != 0 || byte(1) != 0 || byte(2) != kUnsignedByte || byte(3) != rank) {
    refuse(fmt::format("begins with {:02x}{:02x}{:02x}{:02x}, expected 000008{:02x} (IDX of unsigned bytes, rank {})", byte(0),
                       byte(1), byte(2), byte(3), rank, rank));
  }
  // At most four extents of 32 bits: their product is checked step by step against the bytes that are there.
  uint64_t count = 1;
  const uint64_t found = idx.bytes.size() - idx.begin;
  for (size_t i = 0; i < rank; ++i) {
    uint64_t extent = 0;
    for (size_t b = 0; b < 4; ++b) extent = extent << 8 | byte(4 + 4 * i + b);
    idx.shape.push_back(static_cast<int64_t>(extent));
    if (extent == 0 || extent > found || count > found / extent) count = 0;
    count *= extent;
  }
  if (found == 0 || count != found) {
    refuse(fmt::format("has {} bytes of values, expected the product of its shape [{}]", grouped(found),
                       fmt::join(idx.shape, ", ")));
  }
  return idx;
}

}  // namespace

std::filesystem::path find_data_file(const std::filesystem::path& path) {
  for (const char* ending : {"", ".gz", ".xz"}) {
    if (std::filesystem::path file = path.string() + ending; std::filesystem::exists(file)) return file;
  }
  return {};
}

void LabelledTextFormat::set_label(const std::string& number_or_name) {
  const std::optional<int64_t> number = whole_number(number_or_name);
  require(!number_or_name.empty() && (!number || (*number >= 1 && *number <= 1000)),
          "label column: '{}' is neither a number from 1 to 1000 nor a name", number_or_name);
  label_column = number ? static_cast<int>(*number) : 1;
  label_name = number ? "" : number_or_name;
  header = header || !label_name.empty();
}

LabelledTexts read_labelled_texts(const std::filesystem::path& path, const LabelledTextFormat& format) {
  require(format.label_column >= 1 && format.text_column >= 0,
          "read_labelled_texts: columns {} and {}, expected numbers from 1 (of the text: or 0)", format.label_column,
          format.text_column);
  const std::string text = read_text_file(path);
  const std::vector<std::string_view> lines = lines_of(text);
  const auto [label, first, needed] = find_columns(path, lines.front(), format);
  LabelledTexts result;
  for (size_t i = format.header || !format.label_name.empty() ? 1 : 0; i < lines.size(); ++i) {
    const std::vector<std::string_view> columns = columns_of(lines[i]);
    const auto refuse = [&](const std::string& what) {
      throw FormatError(fmt::format("{}: line {} {}", path.string(), grouped(i + 1), what));
    };
    if (columns.size() < needed) {
      refuse(fmt::format("has {} {}, expected at least {} between tabs", columns.size(),
                         columns.size() == 1 ? "column" : "columns", needed));
    }
    if (columns[label].empty()) refuse(fmt::format("has no label in column {}", label + 1));
    result.labels.emplace_back(columns[label]);
    result.texts.emplace_back(columns[first]);
    if (format.pairs) result.seconds.emplace_back(columns[first + 1]);
  }
  if (result.labels.empty()) throw FormatError(fmt::format("{}: has no examples", path.string()));
  return result;
}

std::vector<std::string> classes_of(std::span<const std::string> labels) {
  const std::set<std::string> distinct(labels.begin(), labels.end());
  std::vector<std::string> classes(distinct.begin(), distinct.end());
  if (std::ranges::all_of(classes, [](const std::string& label) { return whole_number(label).has_value(); })) {
    std::ranges::stable_sort(classes, {}, [](const std::string& label) { return *whole_number(label); });
  }
  return classes;
}

void require_classes(std::span<const std::string> labels, std::string_view where) {
  constexpr size_t kMaxBytes = 200;     // of a name
  constexpr size_t kManyClasses = 100;  // plausible if each has enough examples
  constexpr std::string_view kHint = "is the label in another column (--label-column)?";
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i].size() > kMaxBytes) {
      throw FormatError(fmt::format("{}: the label of example {} has {} bytes, expected at most {} (\"{}\"): {}", where,
                                    grouped(i + 1), grouped(labels[i].size()), kMaxBytes, shortened(labels[i]), kHint));
    }
  }
  const size_t classes = std::set<std::string_view>(labels.begin(), labels.end()).size();
  if (classes > kManyClasses && classes > labels.size() / 2) {
    throw FormatError(fmt::format("{}: {} labels of {} examples are different (\"{}\", ..): {}", where, grouped(classes),
                                  grouped(labels.size()), shortened(labels.front()), kHint));
  }
}

std::vector<int64_t> class_ids(std::span<const std::string> labels, std::span<const std::string> classes,
                               std::string_view where) {
  std::map<std::string_view, int64_t> places;
  for (const std::string& name : classes) places.emplace(name, static_cast<int64_t>(places.size()));
  std::vector<int64_t> ids;
  ids.reserve(labels.size());
  for (const std::string& label : labels) {
    const auto found = places.find(label);
    if (found == places.end()) {
      std::vector<std::string> some;
      for (const std::string& name : classes.first(std::min<size_t>(classes.size(), 20))) some.push_back(shortened(name));
      throw FormatError(fmt::format("{}: example {} has label \"{}\", expected one of the {} classes: {}{}", where,
                                    grouped(ids.size() + 1), shortened(label), classes.size(), fmt::join(some, ", "),
                                    some.size() < classes.size() ? ", ..." : ""));
    }
    ids.push_back(found->second);
  }
  return ids;
}

void save_classes(std::span<const std::string> classes, const std::filesystem::path& directory) {
  write_file(directory / kClassesFile, fmt::format("{}\n", fmt::join(classes, "\n")));
}

std::vector<std::string> load_classes(const std::filesystem::path& directory) {
  const std::string text = read_text_file(directory / kClassesFile);
  const auto lines = lines_of(text);
  return {lines.begin(), lines.end()};
}

ParallelText read_parallel_text(const std::filesystem::path& sources, const std::filesystem::path& targets) {
  const std::string source_text = read_text_file(sources), target_text = read_text_file(targets);
  const std::vector<std::string_view> left = lines_of(source_text), right = lines_of(target_text);
  if (left.size() != right.size()) {
    throw FormatError(fmt::format("{} has {} lines and {} has {}: expected the same number of lines", sources.string(),
                                  grouped(left.size()), targets.string(), grouped(right.size())));
  }
  ParallelText text;
  for (size_t i = 0; i < left.size(); ++i) {
    if (left[i].empty() && right[i].empty()) continue;
    if (left[i].empty() || right[i].empty()) {
      throw FormatError(fmt::format("{}: line {} is empty, but not in {}", (left[i].empty() ? sources : targets).string(),
                                    grouped(i + 1), (left[i].empty() ? targets : sources).string()));
    }
    text.sources.emplace_back(left[i]);
    text.targets.emplace_back(right[i]);
  }
  if (text.sources.empty()) throw FormatError(fmt::format("{}: has no sentences", sources.string()));
  return text;
}

ParallelText read_parallel_text(const std::string& prefix, const std::string& source, const std::string& target) {
  const auto find = [&](const std::string& ending) {
    const std::filesystem::path plain = prefix + "." + ending, found = find_data_file(plain);
    return found.empty() ? plain : found;
  };
  return read_parallel_text(find(source), find(target));
}

int64_t LabelledImages::classes() const { return labels.empty() ? 0 : *std::ranges::max_element(labels) + 1; }

LabelledImages read_idx_pixels(const std::filesystem::path& images) {
  const Idx pixels = read_idx(images, 3);
  if (pixels.shape[1] != pixels.shape[2]) {
    throw FormatError(
        fmt::format("{}: holds images of {} x {}, expected square images", images.string(), pixels.shape[1], pixels.shape[2]));
  }
  LabelledImages result = {.count = pixels.shape[0], .channels = 1, .size = pixels.shape[1], .pixels = {}, .labels = {}};
  result.pixels.assign(pixels.bytes.begin() + static_cast<ptrdiff_t>(pixels.begin), pixels.bytes.end());
  return result;
}

LabelledImages read_idx_images(const std::filesystem::path& images, const std::filesystem::path& labels) {
  LabelledImages result = read_idx_pixels(images);
  const Idx classes = read_idx(labels, 1);
  if (result.count != classes.shape[0]) {
    throw FormatError(fmt::format("{} has {} images and {} has {} labels", images.string(),
                                  grouped(static_cast<uint64_t>(result.count)), labels.string(),
                                  grouped(static_cast<uint64_t>(classes.shape[0]))));
  }
  for (size_t i = classes.begin; i < classes.bytes.size(); ++i)
    result.labels.push_back(static_cast<unsigned char>(classes.bytes[i]));
  return result;
}

LabelledImages read_cifar_images(std::span<const std::filesystem::path> paths) {
  require(!paths.empty(), "read_cifar_images: no files, expected at least one");
  constexpr size_t kPixels = size_t{3} * 32 * 32, kRecord = 1 + kPixels;
  constexpr unsigned char kClasses = 10;
  LabelledImages result = {.count = 0, .channels = 3, .size = 32, .pixels = {}, .labels = {}};
  for (const std::filesystem::path& path : paths) {
    const std::string bytes = read_data_file(path, kMaxBytesOfDataset);
    if (bytes.empty() || bytes.size() % kRecord != 0) {
      throw FormatError(fmt::format("{}: has {} bytes, expected a multiple of {} (a label and 3 x 32 x 32 bytes)", path.string(),
                                    grouped(bytes.size()), kRecord));
    }
    for (size_t at = 0; at < bytes.size(); at += kRecord) {
      const auto label = static_cast<unsigned char>(bytes[at]);
      if (label >= kClasses) {
        throw FormatError(fmt::format("{}: label {} at byte {}, expected 0 to 9", path.string(), label, grouped(at)));
      }
      result.labels.push_back(label);
      result.pixels.insert(result.pixels.end(), bytes.begin() + static_cast<ptrdiff_t>(at) + 1,
                           bytes.begin() + static_cast<ptrdiff_t>(at + kRecord));
      ++result.count;
    }
  }
  return result;
}

}  // namespace raffia::internal
