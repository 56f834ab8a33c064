#include "bench/isa_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <deque>

#include "bench/table.h"

namespace raffia::internal::bench {
namespace {

constexpr RecordColumn<IsaRecord> kCaseColumns[] = {
    {"op", [](const IsaRecord& r) { return json_of(r.op); }, Style::key},
    {"pass", [](const IsaRecord& r) { return json_of(r.pass); }},
    {"input", [](const IsaRecord& r) { return json_of(r.input); }},
    {"causal", [](const IsaRecord& r) { return json_of(r.causal); }},
    {"shape", [](const IsaRecord& r) { return json_of(r.shape); }, Style::key},
    {"dtype", [](const IsaRecord& r) { return json_of(r.dtype); }},
    {"threads", [](const IsaRecord& r) { return json_of(r.threads); }},
};

std::string human_gflops(const Json& value) { return fmt::format("{:.1f}", value.get<double>()); }

constexpr RecordColumn<IsaTime> kTimeColumns[] = {
    {"seconds", [](const IsaTime& t) { return json_of(t.seconds); }, Style::measured, human_time},
    {"ratio", [](const IsaTime& t) { return json_of(t.ratio); }, Style::measured, human_ratio},
    {"gflops", [](const IsaTime& t) { return json_of(t.gflops); }, Style::measured, human_gflops},
    {"peak_fraction", [](const IsaTime& t) { return json_of(t.peak_fraction); }, Style::measured, human_percent},
};

// "rfa backward features causal [1, 1024, 8, 64]: avx512 0.91", with the ratio.
std::string finding_of(const IsaRecord& record) {
  std::string what = fmt::format("{} {}", record.op, record.pass);
  if (record.input) what += " " + *record.input;
  if (record.causal && *record.causal) what += " causal";
  std::vector<std::string> ratios;
  for (const IsaTime& time : record.times) {
    if (time.ratio && *time.ratio * (1 + kIsaTolerance) < 1) ratios.push_back(fmt::format("{} {:.2f}", time.isa, *time.ratio));
  }
  return fmt::format("{} {}: {}", what, record.shape, fmt::join(ratios, ", "));
}

void print_summary(std::span<const IsaRecord> records, std::ostream& out) {
  if (records.empty() || records.front().times.size() < 2) return;
  const auto slower = std::ranges::count_if(records, [](const IsaRecord& record) { return record.slower.has_value(); });
  const double percent = 100 * kIsaTolerance;
  if (slower == 0) {
    out << fmt::format("\nNo wider instruction set is slower by more than {:.0f}% in any row.\n", percent);
    return;
  }
  out << fmt::format("\nA wider instruction set is slower by more than {:.0f}% in {} of {} rows:\n\n", percent, slower,
                     records.size());
  for (const IsaRecord& record : records) {
    if (record.slower) out << fmt::format("- {}\n", finding_of(record));
  }
}

}  // namespace

void compare_isas(IsaRecord& record) {
  std::vector<std::string_view> slower;
  for (size_t i = 1; i < record.times.size(); ++i) {
    IsaTime& time = record.times[i];
    time.ratio = record.times[i - 1].seconds / time.seconds;
    if (*time.ratio * (1 + kIsaTolerance) < 1) slower.push_back(time.isa);
  }
  record.slower.reset();
  if (!slower.empty()) record.slower = fmt::format("{}", fmt::join(slower, ", "));
}

void print_records(std::span<const IsaRecord> records, Format format, std::ostream& out) {
  std::vector<TableColumn> columns;
  std::deque<std::string> names;  // of columns; they stay where they are
  std::vector<TableRow> rows(records.size());
  for (const auto& column : kCaseColumns) {
    columns.push_back({column.name, column.style, column.human});
    for (size_t r = 0; r < records.size(); ++r) rows[r].push_back(column.get(records[r]));
  }
  const size_t isas = records.empty() ? 0 : records.front().times.size();
  for (size_t i = 0; i < isas; ++i) {
    for (const auto& column : kTimeColumns) {
      const std::string& name = names.emplace_back(fmt::format("{}_{}", column.name, records.front().times[i].isa));
      columns.push_back({name.c_str(), column.style, column.human});
      for (size_t r = 0; r < records.size(); ++r) rows[r].push_back(column.get(records[r].times[i]));
    }
  }
  columns.push_back({"slower", Style::measured});
  for (size_t r = 0; r < records.size(); ++r) rows[r].push_back(json_of(records[r].slower));
  print_table(columns, rows, format, out);
  if (format == Format::markdown) print_summary(records, out);
}

}  // namespace raffia::internal::bench
