#include "bench/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace raffia::internal::bench {
namespace {

void print_json(std::span<const TableColumn> columns, std::span<const TableRow> rows, std::ostream& out) {
  Json array = Json::array();
  for (const TableRow& row : rows) {
    Json object;
    for (size_t i = 0; i < columns.size(); ++i) object[columns[i].name] = row[i];
    array.push_back(std::move(object));
  }
  out << json_text(array, 2) << '\n';
}

// In quotes where a comma or a quote would end it.
std::string csv_cell(const Json& value) {
  const std::string text = plain(value);
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

void print_csv(std::span<const TableColumn> columns, std::span<const TableRow> rows, std::ostream& out) {
  std::vector<std::string> cells;
  for (const TableColumn& column : columns) cells.emplace_back(column.name);
  out << fmt::format("{}\n", fmt::join(cells, ","));
  for (const TableRow& row : rows) {
    cells.clear();
    for (const Json& value : row) cells.push_back(csv_cell(value));
    out << fmt::format("{}\n", fmt::join(cells, ","));
  }
}

// Records without the value do not object.
bool all_agree(std::span<const TableRow> rows, size_t column) {
  Json common;
  return std::all_of(rows.begin(), rows.end(), [&](const TableRow& row) {
    if (common.is_null()) common = row[column];
    return row[column].is_null() || row[column] == common;
  });
}

bool all_empty(std::span<const TableRow> rows, size_t column) {
  return std::all_of(rows.begin(), rows.end(), [column](const TableRow& row) { return row[column].is_null(); });
}

void print_markdown(std::span<const TableColumn> columns, std::span<const TableRow> rows, std::ostream& out) {
  if (rows.empty()) return;
  std::vector<std::string> shared;
  std::vector<std::vector<std::string>> table(rows.size() + 1);  // the header, then a line per record
  for (size_t i = 0; i < columns.size(); ++i) {
    const TableColumn& column = columns[i];
    if (all_empty(rows, i)) continue;
    if (column.style == Style::shared && all_agree(rows, i)) {
      const auto first = std::find_if(rows.begin(), rows.end(), [i](const TableRow& row) { return !row[i].is_null(); });
      shared.push_back(fmt::format("{} {}", column.name, column.human((*first)[i])));
      continue;
    }
    table[0].emplace_back(column.name);
    for (size_t r = 0; r < rows.size(); ++r) {
      table[r + 1].push_back(rows[r][i].is_null() ? "-" : column.human(rows[r][i]));
    }
  }
  const auto cell_width = [&table](size_t column) {
    size_t width = 3;
    for (const auto& row : table) width = std::max(width, row[column].size());
    return width;
  };
  out << fmt::format("{}\n\n", fmt::join(shared, ", "));
  for (size_t i = 0; i < table.size(); ++i) {
    for (size_t column = 0; column < table[i].size(); ++column) {
      out << (column == 0 ? fmt::format("| {:<{}} ", table[i][column], cell_width(column))
                          : fmt::format("| {:>{}} ", table[i][column], cell_width(column)));
    }
    out << "|\n";
    if (i > 0) continue;
    for (size_t column = 0; column < table[i].size(); ++column) {
      out << fmt::format("|{}{:-<{}}{}", column == 0 ? ":" : "-", "", cell_width(column), column == 0 ? "-" : ":");
    }
    out << "|\n";
  }
}

}  // namespace

std::string plain(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : json_text(value);
}

void print_table(std::span<const TableColumn> columns, std::span<const TableRow> rows, Format format, std::ostream& out) {
  switch (format) {
    case Format::json:
      return print_json(columns, rows, out);
    case Format::csv:
      return print_csv(columns, rows, out);
    case Format::markdown:
      return print_markdown(columns, rows, out);
  }
}

std::string human_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.2f} ms", 1e3 * seconds);
  return fmt::format("{:.2f} s", seconds);
}

std::string human_time(const Json& value) { return human_seconds(value.get<double>()); }

std::string human_bytes(const Json& value) {
  const auto bytes = value.get<double>();
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

std::string human_ratio(const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }

std::string human_percent(const Json& value) { return fmt::format("{:.1f}%", 100 * value.get<double>()); }

}  // namespace raffia::internal::bench
