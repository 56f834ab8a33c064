#include "torch/train/distributed_run.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/check.h"
#include "io/formats/json_fields.h"
#include "raffia/error.h"

namespace raffia::internal::train {
namespace {

// What another process has sent is not trusted.
std::map<std::string, std::string> options_of_rank(size_t rank, const std::string& text) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  const std::string what = fmt::format("the options of rank {}", rank);
  constexpr std::string_view kHint = "do all ranks run the same version of raffia?";
  require(text.size() <= kMaxBytes, "{} have {} bytes, expected at most {}: {}", what, text.size(), kMaxBytes, kHint);
  std::map<std::string, std::string> options;
  try {
    const nlohmann::ordered_json tree = parse_ordered_json(text, what);
    JsonFields fields = JsonFields::of(tree, what);
    for (const auto& [name, value] : tree.items()) options[name] = fields.string(name);
  } catch (const FormatError& error) {
    throw InvalidArgument(fmt::format("{}: {}", error.what(), kHint));
  }
  return options;
}

}  // namespace

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

void require_same(Group& group, const std::string& what, const std::string& value, std::string_view hint) {
  const std::vector<std::string> all = group.share(what, value);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] != all[0])
      throw GroupError(fmt::format("rank {}: {} is {}, but {} on rank 0: {}", rank, what, all[rank], all[0], hint));
  }
}

void require_same_options(Group& group, const TrainOptions& options) {
  nlohmann::ordered_json own;
  own["task"] = name_of(options.kind);
  own["resume"] = options.resume ? "true" : "false";
  for (const OptionInfo& info : option_table()) {
    if ((info.kinds & only(options.kind)) != 0 && !info.may_differ_by_rank) own[info.name] = value_text(options, info);
  }
  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& text : group.share("options", json_text(own))) all.push_back(options_of_rank(all.size(), text));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const auto& [name, first] : all[0]) {
      const auto found = all[rank].find(name);
      const std::string other = found == all[rank].end() ? "none" : found->second;
      require(first == other, "rank {} has --{} {}, rank 0 has --{} {}: all ranks of a run need the same options", rank, name,
              other, name, first);
    }
  }
}

int64_t highest_of_ranks(Group& group, int64_t value) {
  if (group.alone()) return value;
  return group.all_gather(at::full({1}, value, at::kLong)).max().item<int64_t>();
}

}  // namespace raffia::internal::train
