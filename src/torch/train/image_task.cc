// Classification of images: IDX files (MNIST, Fashion-MNIST) or CIFAR-10's binary files under their usual names, or one directory
// of image files per class.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "io/data/datasets.h"
#include "io/formats/text.h"
#include "torch/train/data.h"
#include "torch/train/fingerprint.h"
#include "torch/train/image_files.h"
#include "torch/train/labels.h"
#include "torch/train/task.h"

namespace raffia::internal::train {
namespace {

std::pair<LabelledImages, LabelledImages> split_off(const LabelledImages& all, double share) {
  const auto shape = [&all] { return LabelledImages{.channels = all.channels, .size = all.size}; };
  std::pair<LabelledImages, LabelledImages> parts{shape(), shape()};
  const int64_t bytes = all.channels * all.size * all.size;
  for (int64_t i = 0; i < all.count; ++i) {
    LabelledImages& part = is_held_out(static_cast<size_t>(i), share) ? parts.second : parts.first;
    part.pixels.insert(part.pixels.end(), all.pixels.begin() + i * bytes, all.pixels.begin() + (i + 1) * bytes);
    part.labels.push_back(all.labels[static_cast<size_t>(i)]);
    ++part.count;
  }
  return parts;
}

void require_like(const LabelledImages& train, const LabelledImages& other, const std::string& where) {
  require(other.count == 0 || (other.size == train.size && other.channels == train.channels),
          "{}: images are {} x {} with {} channels, the training images {} x {} with {}", where, other.size, other.size,
          other.channels, train.size, train.size, train.channels);
}

class ImageTask : public TrainingTask {
 public:
  ImageTask(TrainOptions& options, bool goes_on) : smoothing_(options.label_smoothing) {
    require(!options.data.empty(), "--data is missing: the directory of images to train on");
    LabelledImages train = read_images(options.data, false), valid;
    names_ = train.names;
    if (!goes_on && !names_.empty()) require_number_of_names(options.classes, names_, options.data);
    const int64_t classes = train.classes();
    if (options.valid.empty()) {
      std::tie(train, valid) = split_off(train, options.valid_share);
    } else {
      valid = read_images(options.valid, false, names_);
    }
    require(valid.count > 0, "--data: {} images are too few to keep some for evaluation; use --valid", train.count);
    LabelledImages test = read_images(options.test.empty() ? options.data : options.test, true, names_);
    require(options.test.empty() || test.count > 0, "--test: {} has no test images", options.test);
    require_like(train, valid, options.valid.empty() ? options.data : options.valid);
    require_like(train, test, options.test.empty() ? options.data : options.test);
    Fingerprint data;
    for (const LabelledImages* part : {&train, &valid}) {
      data.add(part->pixels);
      data.add(part->labels);
    }
    fingerprints_ = {.data = data.value()};

    ModelConfig config = model_config(options);
    config.positions = Positions::none;  // images always have learned positions
    config.classes = options.classes > 0 ? options.classes : classes;
    const int64_t max = std::max({train.classes(), valid.classes(), test.classes()});
    require(max <= config.classes, "--data: an image is of class {}, expected 0 to {} (--classes)", max - 1, config.classes - 1);
    config.image_size = train.size;
    config.channels = train.channels;
    config.patch = options.patch;
    check_config(config, options);
    seed_for_weights(options);
    model_ = std::make_shared<nn::ImageClassifierImpl>(config);
    description_ = fmt::format("{} images of {} x {}, {} to evaluate on, {} to test; {} parameters",
                               grouped(static_cast<uint64_t>(train.count)), train.size, train.size, valid.count, test.count,
                               grouped(static_cast<uint64_t>(model_->parameter_count())));
    const BatchOptions batches{.batch = options.batch, .seed = options.seed};
    train_ = std::make_unique<ImageBatches>(std::move(train), batches, shard_of(options));
    valid_ = std::make_unique<ImageBatches>(std::move(valid), batches);
    if (test.count > 0) test_ = std::make_unique<ImageBatches>(std::move(test), batches);
  }

  nn::ModelImpl& model() override { return *model_; }
  Objective objective() const override { return {.metric = "accuracy", .higher_is_better = true}; }
  int64_t batches_per_epoch() const override { return train_->steps_per_epoch(); }
  Fingerprints fingerprints() const override { return fingerprints_; }
  std::string describe() const override { return description_; }

  LossSum loss(int64_t index) override {
    model_->redraw(static_cast<uint64_t>(index));
    const auto batch = train_->at(index);
    if (batch.labels.numel() == 0) return no_rows();
    const int64_t side = model_->config().image_size / model_->config().patch;
    return label_loss(model_->forward(batch.pixels), batch.labels, smoothing_, batch.labels.numel() * side * side);
  }

  Metrics evaluate(const OnProgress& progress) override { return score(*valid_, progress); }
  void save(const std::filesystem::path& directory) const override {
    if (!names_.empty()) save_classes(names_, directory);
  }
  Metrics test(const OnProgress& progress) override { return test_ ? score(*test_, progress) : Metrics{}; }

 private:
  Metrics score(const ImageBatches& data, const OnProgress& progress) {
    return label_metrics(score_in_parts(*model_, data.size(), kScoredAtOnce, progress, [&](int64_t begin, int64_t end) {
      const auto batch = data.range(begin, end);
      return score_labels(model_->forward(batch.pixels), batch.labels);
    }));
  }

  double smoothing_;
  std::unique_ptr<ImageBatches> train_, valid_, test_;
  std::shared_ptr<nn::ImageClassifierImpl> model_;
  Fingerprints fingerprints_;
  std::string description_;
  std::vector<std::string> names_;  // of the classes, if the data have names
};

}  // namespace

std::unique_ptr<TrainingTask> make_image_task(TrainOptions& options, bool goes_on) {
  return std::make_unique<ImageTask>(options, goes_on);
}

}  // namespace raffia::internal::train
