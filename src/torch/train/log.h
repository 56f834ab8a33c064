// log.jsonl of a run: one JSON object per line, each with its "step".
#ifndef RAFFIA_TORCH_TRAIN_LOG_H_
#define RAFFIA_TORCH_TRAIN_LOG_H_

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "io/formats/file.h"

namespace raffia::internal::train {

class RunLog {
 public:
  // Continues after the lines of steps up to `step`; later lines, and an incomplete line, are dropped. `evaluation_due`: so is an
  // evaluation of `step`, which will be made again.
  RunLog(const std::filesystem::path& path, int64_t step, bool evaluation_due = false);

  void append(const nlohmann::ordered_json& record);  // throws IoError
  void sync();

 private:
  File file_;
};

// All complete lines.
std::vector<nlohmann::ordered_json> read_log(const std::filesystem::path& path);

// The same as a table: a line per record, a column for every field with a single number.
void write_log_csv(const std::filesystem::path& log, const std::filesystem::path& csv);

}  // namespace raffia::internal::train

#endif  // RAFFIA_TORCH_TRAIN_LOG_H_
