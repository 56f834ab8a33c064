// raffia classify: classifies texts, pairs of texts, or images.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/shared/command.h"
#include "cli/shared/flags.h"
#include "cli/shared/input.h"
#include "cli/shared/model_commands.h"
#include "cli/shared/unknown_tokens.h"
#include "core/message.h"
#include "io/data/datasets.h"
#include "io/formats/json_fields.h"
#include "io/formats/npy.h"
#include "io/formats/picture.h"
#include "io/formats/text.h"
#include "raffia/error.h"
#include "raffia/model.h"

namespace raffia::internal::cli {
namespace {

struct ClassifyFlags {
  ModelToRun model;
  std::vector<std::string> files;
  bool whole = false, json = false;
  int64_t top = 1, max_tokens = 0;
  int threads = 0;
};

std::vector<double> probabilities_of(std::span<const float> logits) {
  const double highest = *std::ranges::max_element(logits);
  std::vector<double> values;
  for (const float logit : logits) values.push_back(std::exp(logit - highest));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value /= sum;
  return values;
}

// Prints the most likely classes of each example.
class Printer {
 public:
  Printer(const ClassifyFlags& flags, std::vector<std::string> names) : flags_(flags), names_(std::move(names)) {}

  void print(const std::string& where, int64_t number, std::span<const float> logits) const {
    const std::vector<double> probabilities = probabilities_of(logits);
    std::vector<size_t> order(probabilities.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t i) { return probabilities[i]; });
    order.resize(std::min(order.size(), static_cast<size_t>(flags_.top)));
    if (flags_.json) {
      Json classes = Json::array();
      for (const size_t i : order) classes.push_back({{"class", i}, {"label", label(i)}, {"probability", probabilities[i]}});
      std::cout << json_text({{"input", where}, {"number", number}, {"classes", classes}});
    } else {
      for (size_t i = 0; i < order.size(); ++i) {
        std::cout << fmt::format("{}{}\t{:.4f}", i == 0 ? "" : "\t", label(order[i]), probabilities[order[i]]);
      }
    }
    std::cout << '\n' << std::flush;
  }

 private:
  std::string label(size_t i) const { return names_.empty() ? fmt::format("{}", i) : names_[i]; }

  const ClassifyFlags& flags_;
  const std::vector<std::string> names_;
};

std::vector<std::string> names_for(const Model& model, const std::filesystem::path& directory) {
  if (!std::filesystem::exists(directory / kClassesFile)) return {};
  std::vector<std::string> names = load_classes(directory);
  if (std::ssize(names) != model.config().classes) {
    throw FormatError(fmt::format("{}: has {} class names, expected {} (the classes of the model)",
                                  (directory / kClassesFile).string(), names.size(), model.config().classes));
  }
  return names;
}

class TextClassifier {
 public:
  TextClassifier(const ClassifyFlags& flags, const Model& model) : flags_(flags), model_(model), unknown_(model.tokenizer()) {
    max_tokens_ = model.config().max_length;  // number of learned positions: training truncates texts there, too
    if (flags.max_tokens > 0 && (max_tokens_ == 0 || flags.max_tokens < max_tokens_)) max_tokens_ = flags.max_tokens;
  }

  std::vector<float> logits(std::string_view text) {
    const RunOptions run{.threads = flags_.threads};
    if (!model_.config().pairs) return classify(model_, ids(text), run);
    const size_t tab = text.find('\t');
    if (tab == std::string_view::npos || text.find('\t', tab + 1) != std::string_view::npos) {
      throw FormatError("expected two texts separated by a tab: this model compares pairs");
    }
    return classify_pair(model_, ids(text.substr(0, tab)), ids(text.substr(tab + 1)), run);
  }

  std::string unknown() const { return unknown_.summary(); }

 private:
  std::vector<int32_t> ids(std::string_view text) {
    std::vector<int32_t> found = model_.tokenizer().encode(text);
    unknown_.add(text, found);
    if (max_tokens_ > 0 && std::ssize(found) > max_tokens_) found.resize(static_cast<size_t>(max_tokens_));
    return found;
  }

  const ClassifyFlags& flags_;
  const Model& model_;
  UnknownTokens unknown_;
  int64_t max_tokens_ = 0;
};

void classify_texts(const ClassifyFlags& flags, const Model& model, const Printer& printer) {
  TextClassifier classifier(flags, model);
  std::vector<std::filesystem::path> files(flags.files.begin(), flags.files.end());
  if (files.empty()) files.emplace_back("-");
  for (const auto& file : files) {
    Input input(file);
    if (flags.whole) {
      constexpr size_t kAtOnce = size_t{1} << 16;
      std::string text;
      while (input.read(text, kAtOnce)) {
        if (text.size() > kMaxBytesOfLine) {
          throw FormatError(fmt::format("{}: has more than {} bytes, the maximum for one text", input.name(), kMaxBytesOfLine));
        }
      }
      try {
        printer.print(input.name(), 1, classifier.logits(text));
      } catch (const Error& error) {
        throw Error(fmt::format("{}: {}", input.name(), error.what()));
      }
      continue;
    }
    int64_t number = 0;
    while (const auto line = input.line()) {
      ++number;
      try {
        printer.print(input.name(), number, classifier.logits(*line));
      } catch (const Error& error) {
        throw Error(fmt::format("{}: line {}: {}", input.name(), number, error.what()));
      }
      if (!std::cout) return;
    }
  }
  if (const std::string summary = classifier.unknown(); !summary.empty()) say("{}", summary);
}

FloatArray read_npy_data(const std::filesystem::path& file) {
  if (file.extension() == ".npy") return read_npy(file);
  const std::string bytes = read_data_file(file, kMaxBytesOfDataset);  // .npy.gz, .npy.xz
  return parse_npy(std::as_bytes(std::span(bytes)), file.string());
}

// Images of a file as numbers from 0 to 1, [N, channels, size, size], or fewer extents. The name decides how it is read, without
// the .gz or .xz of a compressed file.
FloatArray read_pixels(const std::filesystem::path& file, const ModelConfig& config) {
  if (data_extension(file) == ".npy") {
    FloatArray array = read_npy_data(file);
    for (const float value : array.values) {
      if (!(value >= 0 && value <= 1)) {
        throw FormatError(fmt::format("{}: contains {}, expected numbers from 0 (black) to 1", file.string(), value));
      }
    }
    return array;
  }
  if (is_picture(file)) return read_picture(file);
  const LabelledImages images = config.channels == 1 ? read_idx_pixels(file) : read_cifar_images(std::span(&file, 1));
  FloatArray array{.shape = {images.count, images.channels, images.size, images.size}, .values = {}};
  for (const uint8_t byte : images.pixels) array.values.push_back(static_cast<float>(byte) / 255);
  return array;
}

void classify_images(const ClassifyFlags& flags, const Model& model, const Printer& printer) {
  const ModelConfig& config = model.config();
  const std::vector<int64_t> image = {config.channels, config.image_size, config.image_size};
  if (flags.files.empty()) throw UsageError("image files are missing: a model for images does not read stdin");
  for (const auto& file : flags.files) {
    FloatArray pixels = read_pixels(file, config);
    std::vector<int64_t>& shape = pixels.shape;
    const std::vector<int64_t> found = shape;
    if (config.channels == 1 && shape.size() == 2) shape.insert(shape.begin(), 1);
    if (shape.size() == 3) shape.insert(shape.begin(), 1);
    if (shape.size() != 4 || !std::equal(image.begin(), image.end(), shape.begin() + 1)) {
      throw FormatError(
          fmt::format("{}: has shape {}, expected {} or several of these", file, to_string(found), to_string(image)));
    }
    const size_t each = pixels.values.size() / static_cast<size_t>(std::max<int64_t>(shape[0], 1));
    for (int64_t i = 0; i < shape[0]; ++i) {
      const auto values = std::span(pixels.values).subspan(static_cast<size_t>(i) * each, each);
      printer.print(file, i + 1, classify_image(model, values, {.threads = flags.threads}));
    }
  }
}

void run(const ClassifyFlags& flags) {
  const std::shared_ptr<const Model> model = load_model(flags.model, {Task::classify, Task::image});
  const Printer printer(flags, names_for(*model, flags.model.directory));
  if (model->config().task == Task::classify) {
    classify_texts(flags, *model, printer);
    return model->require_unchanged();
  }
  if (flags.whole || flags.max_tokens > 0)
    throw UsageError("--whole and --max-tokens are for texts, but this model classifies images");
  classify_images(flags, *model, printer);
  model->require_unchanged();
}

}  // namespace

Run add_classify(CommandLine& command) {
  const auto flags = std::make_shared<ClassifyFlags>();
  add_model(command, flags->model);
  command
      .add_values("files", flags->files, CommandLine::kAnyNumber,
                  "Texts, one per line (default: stdin); images: .png, .jpg, .pgm, .ppm, .npy, IDX (one channel), CIFAR-10's "
                  ".bin (three); all may be compressed (.gz, .xz)")
      .type_name("FILE");
  add_positive(command, "--top", flags->top, "Number of classes to print, most likely first");
  command.add_switch("--whole", flags->whole, "Read each file as one text");
  add_positive(command, "--max-tokens,--most-tokens", flags->max_tokens,
               "Maximum number of tokens read of a text (default: as many as the model supports)");
  command.add_switch("--json", flags->json, "Print one JSON object per line");
  add_threads(command, flags->threads);
  return [flags] { run(*flags); };
}

}  // namespace raffia::internal::cli
