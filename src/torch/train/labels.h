// Common to tasks with labels: loss, accuracy, and which examples are held out.
#ifndef RAFFIA_TORCH_TRAIN_LABELS_H_
#define RAFFIA_TORCH_TRAIN_LABELS_H_

#include <functional>
#include <span>
#include <string>

#include "torch/train/task.h"

namespace raffia::internal::train {

// Whether example i of a file is kept for evaluation: one of every 1 / share, evenly spread, since files are often sorted.
bool is_held_out(size_t i, double share);

// Throws InvalidArgument if --classes asks for another number of classes than there are names in `data`: a class without a name
// would be in the model but in none of its labels. 0: not given.
void require_number_of_names(int64_t classes, std::span<const std::string> names, const std::string& data);

// logits [B, classes], labels [B].
LossSum label_loss(const Tensor& logits, const Tensor& labels, double smoothing, int64_t tokens);

// Examples 0..count, scored in parts [begin, end) of `part`, in evaluation mode.
LabelScore score_in_parts(nn::ModelImpl& model, int64_t count, int64_t part, const OnProgress& progress,
                          const std::function<LabelScore(int64_t begin, int64_t end)>& score);

inline constexpr int64_t kScoredAtOnce = 64;  // examples, in the evaluations of a run
Metrics label_metrics(const LabelScore& score);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_LABELS_H_
