#include "torch/train/log.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "io/formats/json_fields.h"
#include "io/formats/text.h"
#include "raffia/error.h"

namespace raffia::internal::train {
namespace {

bool is_evaluation(const nlohmann::ordered_json& record) { return record.contains("best"); }

File cut_and_open(const std::filesystem::path& path, int64_t step, bool evaluation_due) {
  std::string kept;
  if (std::filesystem::exists(path)) {
    for (const auto& record : read_log(path)) {
      const int64_t at = record.value("step", int64_t{0});
      if (at > step || (at == step && evaluation_due && is_evaluation(record))) continue;
      kept += record.dump() + "\n";
    }
  }
  write_file(path, kept);
  return {path, O_WRONLY | O_APPEND, "open to append"};
}

}  // namespace

RunLog::RunLog(const std::filesystem::path& path, int64_t step, bool evaluation_due)
    : file_(cut_and_open(path, step, evaluation_due)) {}

void RunLog::append(const nlohmann::ordered_json& record) {
  const std::string line = record.dump() + "\n";
  file_.write(std::as_bytes(std::span(line)));
}

void RunLog::sync() { file_.sync(); }

std::vector<nlohmann::ordered_json> read_log(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> records;
  const std::string text = read_file(path);
  for (const std::string_view line : lines_of(text)) {
    try {
      auto record = parse_ordered_json(line, path.string());
      // Damaged lines are left out, and so is the incomplete last line of a killed run.
      if (record.is_object() && record.contains("step") && record["step"].is_number_integer())
        records.push_back(std::move(record));
    } catch (const FormatError&) {
      continue;
    }
  }
  return records;
}

void write_log_csv(const std::filesystem::path& log, const std::filesystem::path& csv) {
  const auto records = read_log(log);
  std::vector<std::string> columns;
  for (const auto& record : records) {
    for (const auto& [name, value] : record.items()) {
      if (value.is_number() && std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
    }
  }
  std::string text = fmt::format("{}\n", fmt::join(columns, ","));
  for (const auto& record : records) {
    std::vector<std::string> cells;
    for (const std::string& column : columns) cells.push_back(record.contains(column) ? record[column].dump() : "");
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  write_file(csv, text);
}

}  // namespace raffia::internal::train
