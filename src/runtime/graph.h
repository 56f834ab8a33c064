// All parts of a loaded model.
#ifndef RAFFIA_RUNTIME_GRAPH_H_
#define RAFFIA_RUNTIME_GRAPH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/formats/mapped_file.h"
#include "model/plan.h"
#include "raffia/model_config.h"
#include "raffia/tokenizer.h"
#include "runtime/stack.h"
#include "runtime/turn.h"
#include "runtime/weights.h"

namespace raffia::internal::runtime {

class Graph {
 public:
  // The weights are in `file`, or in `bytes`.
  Graph(const ModelConfig& config, std::unique_ptr<const MappedFile> file, std::vector<std::byte> bytes,
        std::shared_ptr<const Tokenizer> tokenizer, std::string_view where);

  const ModelConfig& config() const { return config_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const std::string& where() const { return where_; }
  const Stack& encoder() const { return *encoder_; }
  const Stack& decoder() const { return *decoder_; }
  const Linear& head() const { return head_; }
  const Linear& patches() const { return patches_; }
  uint64_t fingerprint() const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // of the weight file
  void require_checksum() const;                                                    // throws FormatError
  void require_unchanged() const;                                                   // the same: Model::require_unchanged
  void require_session_bytes(uint64_t max) const;                                   // the same: LoadOptions::max_session_bytes
  size_t weight_bytes() const { return image_.size(); }
  int64_t parameters() const { return parameters_; }
  std::string_view weight_type() const { return weight_type_; }

  void require_task(std::string_view function, Task task) const;                        // throws InvalidArgument
  void require_ids(std::string_view function, std::span<const int32_t> ids) const;      // the same
  void require_room(std::string_view function, const Stack& stack, int64_t end) const;  // for learned positions

  // A text through the encoder: [T, E], in work.x.
  const float* encode(std::span<const int32_t> ids, const RunOptions& run, Workspace& work) const;
  // The tokens of a turn through the decoder, which adds them to the memories of its sessions; turn.rows is set here. `logits`
  // [n, vocabulary] are those after the last n tokens.
  void decode(std::span<const int32_t> ids, Turn turn, Workspace& work, std::span<float> logits) const;

 private:
  // Embedded tokens through all layers of a stack: [T, E], in work.x.
  const float* forward(const Stack& stack, std::span<const int32_t> ids, const Turn& turn, Workspace& work) const;
  void make_parts(const ModelPlan& plan, WeightReader& weights);
  uint64_t checksum() const;  // of the weight file; computed once, at the first call

  ModelConfig config_;
  std::unique_ptr<const MappedFile> file_;
  std::vector<std::byte> bytes_;
  std::span<const std::byte> image_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string where_;
  std::deque<std::vector<float>> copies_;
  WeightMatrix embedding_ = {};
  Linear output_, head_, patches_;
  std::optional<Stack> encoder_, decoder_;
  int64_t parameters_ = 0;
  std::string_view weight_type_;
  std::map<std::string, std::string> metadata_;
  uint64_t data_begin_ = 0, header_checksum_ = 0;
  mutable std::once_flag hashed_;
  mutable std::atomic<bool> is_hashed_ = false;
  mutable uint64_t data_checksum_ = 0;
};

// first, first + 1, .. first + count - 1
std::vector<int64_t> positions_from(int64_t first, int64_t count);

}  // namespace raffia::internal::runtime

#endif  // RAFFIA_RUNTIME_GRAPH_H_
