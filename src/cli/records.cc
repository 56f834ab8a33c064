#include "cli/records.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace raffia::cli {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json json_of(const T& value) {
  return value;
}

template <typename T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string human_bytes(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

std::string plain(const Json& value) {
  if (value.is_null()) return "";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string human_percent(const Json& value) { return fmt::format("{:.1f}%", 100 * value.get<double>()); }

// How a column appears in the table for people.
enum class Style : uint8_t {
  shared,    // says which case it was; above the table where all records agree
  key,       // the same, but always in the table
  measured,  // in the table unless no record has it
};

struct Column {
  const char* name;
  Json (*get)(const Record& record);
  Style style = Style::shared;
  std::string (*human)(const Json& value) = plain;
};

const Column kColumns[] = {
    {"op", [](const Record& r) { return json_of(r.op); }, Style::key},
    {"pass", [](const Record& r) { return json_of(r.pass); }},
    {"input", [](const Record& r) { return json_of(r.input); }},
    {"causal", [](const Record& r) { return json_of(r.causal); }},
    {"map", [](const Record& r) { return json_of(r.map); }},
    {"threads", [](const Record& r) { return json_of(r.threads); }},
    {"isa", [](const Record& r) { return json_of(r.isa); }},
    {"batch", [](const Record& r) { return json_of(r.batch); }},
    {"heads", [](const Record& r) { return json_of(r.heads); }},
    {"kv_heads", [](const Record& r) { return json_of(r.kv_heads); }},
    {"length", [](const Record& r) { return json_of(r.length); }, Style::key},
    {"head_dim", [](const Record& r) { return json_of(r.head_dim); }},
    {"value_dim", [](const Record& r) { return json_of(r.value_dim); }},
    {"features", [](const Record& r) { return json_of(r.features); }},
    {"segment", [](const Record& r) { return json_of(r.segment); }},
    {"dtype", [](const Record& r) { return json_of(r.dtype); }},
    {"seconds", [](const Record& r) { return json_of(r.seconds); }, Style::measured,
     [](const Json& value) { return human_seconds(value.get<double>()); }},
    {"gflops", [](const Record& r) { return json_of(r.gflops); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.1f}", value.get<double>()); }},
    {"peak_fraction", [](const Record& r) { return json_of(r.peak_fraction); }, Style::measured, human_percent},
    {"ratio_to_softmax", [](const Record& r) { return json_of(r.ratio_to_softmax); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.2f}", value.get<double>()); }},
    {"state_bytes", [](const Record& r) { return json_of(r.state_bytes); }, Style::measured,
     [](const Json& value) { return human_bytes(value.get<double>()); }},
    {"peak_rss_bytes", [](const Record& r) { return json_of(r.peak_rss_bytes); }, Style::measured,
     [](const Json& value) { return human_bytes(value.get<double>()); }},
    {"bytes_read", [](const Record& r) { return json_of(r.bytes_read); }, Style::measured,
     [](const Json& value) { return human_bytes(value.get<double>()); }},
    {"bandwidth_fraction", [](const Record& r) { return json_of(r.bandwidth_fraction); }, Style::measured, human_percent},
};

void print_json(std::span<const Record> records, std::ostream& out) {
  Json array = Json::array();
  for (const Record& record : records) {
    Json object;
    for (const Column& column : kColumns) object[column.name] = column.get(record);
    array.push_back(std::move(object));
  }
  out << array.dump(2) << '\n';
}

void print_csv(std::span<const Record> records, std::ostream& out) {
  std::vector<std::string> cells;
  for (const Column& column : kColumns) cells.emplace_back(column.name);
  out << fmt::format("{}\n", fmt::join(cells, ","));
  for (const Record& record : records) {
    cells.clear();
    for (const Column& column : kColumns) cells.push_back(plain(column.get(record)));
    out << fmt::format("{}\n", fmt::join(cells, ","));
  }
}

// Records without the value do not object.
bool all_agree(std::span<const Record> records, const Column& column) {
  Json common;
  return std::all_of(records.begin(), records.end(), [&](const Record& record) {
    const Json value = column.get(record);
    if (common.is_null()) common = value;
    return value.is_null() || value == common;
  });
}

bool all_empty(std::span<const Record> records, const Column& column) {
  return std::all_of(records.begin(), records.end(), [&](const Record& record) { return column.get(record).is_null(); });
}

void print_markdown(std::span<const Record> records, std::ostream& out) {
  if (records.empty()) return;
  std::vector<std::string> shared;
  std::vector<std::vector<std::string>> table(records.size() + 1);  // the header, then a row per record
  for (const Column& column : kColumns) {
    if (all_empty(records, column)) continue;
    if (column.style == Style::shared && all_agree(records, column)) {
      const auto first = std::find_if(records.begin(), records.end(), [&](const Record& r) { return !column.get(r).is_null(); });
      shared.push_back(fmt::format("{} {}", column.name, column.human(column.get(*first))));
      continue;
    }
    table[0].emplace_back(column.name);
    for (size_t i = 0; i < records.size(); ++i) {
      const Json value = column.get(records[i]);
      table[i + 1].push_back(value.is_null() ? "-" : column.human(value));
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

void print_records(std::span<const Record> records, Format format, std::ostream& out) {
  switch (format) {
    case Format::json:
      return print_json(records, out);
    case Format::csv:
      return print_csv(records, out);
    case Format::markdown:
      return print_markdown(records, out);
  }
}

std::string human_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.2f} ms", 1e3 * seconds);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace raffia::cli
