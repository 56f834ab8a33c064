// What the trainer exchanges between processes besides gradients. All of it is a no-op for a single process.
#ifndef RAFFIA_TORCH_TRAIN_DISTRIBUTED_RUN_H_
#define RAFFIA_TORCH_TRAIN_DISTRIBUTED_RUN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "torch/libtorch.h"
#include "torch/tensor_file.h"
#include "torch/train/distributed.h"
#include "torch/train/options.h"

namespace raffia::internal::train {

// Tensors with two or more axes have the rows of batches first, and each rank has its own rows; others are the same on all ranks.
// Conversion from the part of each rank to the whole, in the order of ranks, and back.
NamedTensors gather_rows(Group& group, const NamedTensors& own);
NamedTensors rows_of_rank(const Group& group, const NamedTensors& whole);

// Parameters and buffers become those of rank 0.
void share_weights(Group& group, torch::nn::Module& model);

// Throws GroupError if ranks differ: "rank 1: step is 10, but 20 on rank 0: ...". `hint` says what to do.
void require_same(Group& group, const std::string& what, const std::string& value, std::string_view hint);

// Throws InvalidArgument on all ranks if their options differ: "rank 1 has --lr 0.002, rank 0 has --lr 0.001".
void require_same_options(Group& group, const TrainOptions& options);

int64_t highest_of_ranks(Group& group, int64_t value);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_DISTRIBUTED_RUN_H_
