#include "runtime/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "io/formats/safetensors.h"
#include "io/formats/text.h"
#include "model/config_fields.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/products.h"

namespace raffia::internal::runtime {

Graph::Graph(const ModelConfig& config, std::unique_ptr<const MappedFile> file, std::vector<std::byte> bytes,
             std::shared_ptr<const Tokenizer> tokenizer, std::string_view where)
    : config_(config),
      file_(std::move(file)),
      bytes_(std::move(bytes)),
      image_(file_ ? file_->bytes() : std::span<const std::byte>(bytes_)),
      tokenizer_(std::move(tokenizer)),
      where_(where) {
  config.check(where);
  const ModelPlan plan = plan_of(config);
  WeightReader weights(image_, plan, where);
  make_parts(plan, weights);
  weights.expect_all_read(plan);
  metadata_ = weights.file().metadata();
  data_begin_ = weights.file().data_begin();
  header_checksum_ = data_checksum(image_.first(data_begin_));
  parameters_ = plan.parameters();
  weight_type_ = weights.type_name();
  copies_ = weights.take_copies();
}

void Graph::make_parts(const ModelPlan& plan, WeightReader& weights) {
  if (plan.embedding) embedding_ = weights.matrix(plan.embedding->weight);
  if (plan.patches) patches_ = weights.linear(*plan.patches);
  if (plan.encoder) encoder_.emplace(*plan.encoder, weights);
  if (plan.decoder) {
    decoder_.emplace(*plan.decoder, weights);
    output_ = plan.output ? weights.linear(*plan.output) : Linear{.weight = embedding_};
  }
  if (plan.head) head_ = weights.linear(*plan.head);
}

uint64_t Graph::checksum() const {
  std::call_once(hashed_, [this] {
    data_checksum_ = data_checksum(image_.subspan(data_begin_));
    is_hashed_ = true;
  });
  return data_checksum_;
}

void Graph::require_checksum() const {
  internal::require_checksum(
      metadata_, [this] { return checksum(); }, where_);
}

void Graph::require_unchanged() const {
  if (file_ == nullptr || file_->is_untouched()) return;
  // The modification time may have changed without the bytes.
  if (is_hashed_ && file_->has_its_size() && data_checksum(image_.first(data_begin_)) == header_checksum_ &&
      data_checksum(image_.subspan(data_begin_)) == data_checksum_) {
    return;
  }
  throw FormatError(fmt::format(
      "{}: was changed while it was memory-mapped, so that later results may be wrong: replace weights by renaming a new "
      "file over them, or load them with --no-mmap (LoadOptions::map)",
      where_));
}

void Graph::require_session_bytes(uint64_t most) const {
  if (!decoder_) return;
  constexpr uint64_t kAlways = uint64_t{256} << 20, kTimesWeights = 8;
  if (most == 0) most = std::max<uint64_t>(kAlways, kTimesWeights * image_.size());
  uint64_t bytes = 0;
  try {
    bytes = decoder_->memory_bytes(0);
  } catch (const InvalidArgument& error) {  // settings of an estimator that do not go together
    throw FormatError(fmt::format("{}: no session can be made with the estimators in {}: {}", where_, kConfigFile, error.what()));
  }
  if (bytes > most) {
    throw FormatError(
        fmt::format("{}: a new session of this model takes {} bytes, expected at most {} (LoadOptions::max_session_bytes): check "
                    "window, samples and features of the estimators in {}",
                    where_, grouped(bytes), grouped(most), kConfigFile));
  }
}

uint64_t Graph::fingerprint() const {
  // Includes the header: names and shapes determine the meaning of the data.
  const std::string text = fmt::format("{}{:016x}{:016x}{:016x}", identity_text(config_), header_checksum_, checksum(),
                                       tokenizer_ ? tokenizer_->fingerprint() : 0);
  return data_checksum(std::as_bytes(std::span(text)));
}

void Graph::require_task(std::string_view function, Task task) const {
  require(config_.task == task, "{}: the model {} is for task {}, expected {}", function, where_, name_of(config_.task),
          name_of(task));
}

void Graph::require_ids(std::string_view function, std::span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    require(ids[i] >= 0 && ids[i] < config_.vocabulary, "{}: id {} at position {}, expected 0 to {} (the vocabulary)", function,
            ids[i], i, config_.vocabulary - 1);
  }
}

void Graph::require_room(std::string_view function, const Stack& stack, int64_t end) const {
  require(stack.max_positions() == 0 || end <= stack.max_positions(),
          "{}: the text is {} tokens long, expected at most {} (the number of learned positions)", function, end,
          stack.max_positions());
}

const float* Graph::forward(const Stack& stack, std::span<const int32_t> ids, const Turn& turn, Workspace& work) const {
  const auto width = static_cast<size_t>(config_.width);
  float* x = work.x.of(turn.rows * config_.width);
  for (size_t i = 0; i < ids.size(); ++i) copy_row(embedding_, ids[i], {x + i * width, width});
  stack.forward(x, turn, work);
  return x;
}

const float* Graph::encode(std::span<const int32_t> ids, const RunOptions& run, Workspace& work) const {
  const auto rows = static_cast<int64_t>(ids.size());
  const std::vector<int64_t> positions = positions_from(0, rows);
  return forward(*encoder_, ids, {.form = Turn::Form::whole, .rows = rows, .positions = positions, .run = run}, work);
}

void Graph::decode(std::span<const int32_t> ids, Turn turn, Workspace& work, std::span<float> logits) const {
  turn.rows = static_cast<int64_t>(ids.size());
  const float* x = forward(*decoder_, ids, turn, work);
  const int64_t wanted = static_cast<int64_t>(logits.size()) / config_.vocabulary;
  // As in a step, whatever the turn is: the logits after a token have the same bits however many are wanted.
  const Turn product{.form = Turn::Form::step, .rows = wanted, .run = turn.run};
  const float* last = x + (turn.rows - wanted) * config_.width;
  multiply({{&output_, last, config_.width, logits.data(), config_.vocabulary}}, product);
}

std::vector<int64_t> positions_from(int64_t first, int64_t count) {
  std::vector<int64_t> positions(static_cast<size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

}  // namespace raffia::internal::runtime
