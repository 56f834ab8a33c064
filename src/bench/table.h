// Prints records as JSON, CSV or a readable table.
#ifndef RAFFIA_BENCH_TABLE_H_
#define RAFFIA_BENCH_TABLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/format.h"
#include "io/formats/json_fields.h"

namespace raffia::internal::bench {

// How a column appears in the readable table.
enum class Style : uint8_t {
  shared,    // identifies the case; printed above the table if it is the same in all records
  key,       // the same, but always in the table
  measured,  // in the table if any record has it
};

std::string plain(const Json& value);  // empty for null

struct TableColumn {
  const char* name;
  Style style = Style::shared;
  std::string (*human)(const Json& value) = plain;
};

// A row has a value per column; null: no value.
using TableRow = std::vector<Json>;

// JSON: an array of objects. CSV: a header and a line per record. Markdown: a line with the values common to all records, then a
// table of the rest.
void print_table(std::span<const TableColumn> columns, std::span<const TableRow> rows, Format format, std::ostream& out);

// A column of records of type `Record`, and how its value is found.
template <typename Record>
struct RecordColumn {
  const char* name;
  Json (*get)(const Record& record);
  Style style = Style::shared;
  std::string (*human)(const Json& value) = plain;
};

template <typename Record, size_t kCount>
void print_table(const RecordColumn<Record> (&columns)[kCount], std::span<const Record> records, Format format,
                 std::ostream& out) {
  std::vector<TableColumn> heads;
  for (const auto& column : columns) heads.push_back({column.name, column.style, column.human});
  std::vector<TableRow> rows;
  for (const Record& record : records) {
    for (TableRow& row = rows.emplace_back(); const auto& column : columns) row.push_back(column.get(record));
  }
  print_table(heads, rows, format, out);
}

template <typename T>
Json json_of(const T& value) {
  return value;
}

template <typename T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// "31.6 ms", "5.45 us".
std::string human_seconds(double seconds);

// For columns.
std::string human_time(const Json& value);     // seconds, as above
std::string human_bytes(const Json& value);    // "266.3 kB"
std::string human_ratio(const Json& value);    // "1.82"
std::string human_percent(const Json& value);  // of a fraction: "85.3%"

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_TABLE_H_
