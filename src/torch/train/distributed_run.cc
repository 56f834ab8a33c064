#include "torch/train/distributed_run.h"

#include <fmt/format.h>

#include "core/check.h"

namespace raffia::train {

NamedTensors gather_rows(Group& group, const NamedTensors& own) {
  if (group.alone()) return own;
  NamedTensors whole;
  for (const auto& [name, tensor] : own) {
    whole.emplace_back(name, tensor.dim() >= 2 ? group.all_gather(tensor).flatten(0, 1) : tensor);
  }
  return whole;
}

NamedTensors rows_of_rank(const Group& group, const NamedTensors& whole) {
  if (group.alone()) return whole;
  NamedTensors own;
  for (const auto& [name, tensor] : whole) {
    if (tensor.dim() < 2) {
      own.emplace_back(name, tensor);
      continue;
    }
    require(tensor.size(0) % group.size() == 0, "{} has {} rows, expected a multiple of the number of ranks, {}", name,
            tensor.size(0), group.size());
    const int64_t rows = tensor.size(0) / group.size();
    own.emplace_back(name, tensor.narrow(0, group.rank() * rows, rows).clone());
  }
  return own;
}

void share_weights(Group& group, torch::nn::Module& model) {
  if (group.alone()) return;
  const at::NoGradGuard no_grad;
  for (const Tensor& tensor : model.parameters()) group.broadcast(tensor);
  for (const Tensor& tensor : model.buffers()) group.broadcast(tensor);
}

void require_same(Group& group, std::string_view what, int64_t value, std::string_view hint) {
  if (group.alone()) return;
  const Tensor all = group.all_gather(at::full({1}, value, at::kLong));
  for (int64_t rank = 1; rank < group.size(); ++rank) {
    const int64_t other = all[rank].item<int64_t>(), first = all[0].item<int64_t>();
    if (other != first) throw GroupError(fmt::format("rank {}: {} is {}, but {} on rank 0: {}", rank, what, other, first, hint));
  }
}

bool any_rank(Group& group, bool value) {
  if (group.alone()) return value;
  const Tensor votes = at::full({1}, value ? 1 : 0, at::kLong);
  group.all_reduce(votes);
  return votes.item<int64_t>() > 0;
}

}  // namespace raffia::train
