#include "bench/records.h"

#include <fmt/format.h>

#include "bench/table.h"

namespace raffia::internal::bench {
namespace {

const RecordColumn<Record> kRecordColumns[] = {
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
    {"samples", [](const Record& r) { return json_of(r.samples); }},
    {"window", [](const Record& r) { return json_of(r.window); }},
    {"segment", [](const Record& r) { return json_of(r.segment); }},
    {"layers", [](const Record& r) { return json_of(r.layers); }},
    {"dtype", [](const Record& r) { return json_of(r.dtype); }},
    {"seconds", [](const Record& r) { return json_of(r.seconds); }, Style::measured, human_time},
    {"tokens_per_second", [](const Record& r) { return json_of(r.tokens_per_second); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.0f}", value.get<double>()); }},
    {"gflops", [](const Record& r) { return json_of(r.gflops); }, Style::measured,
     [](const Json& value) { return fmt::format("{:.1f}", value.get<double>()); }},
    {"peak_fraction", [](const Record& r) { return json_of(r.peak_fraction); }, Style::measured, human_percent},
    {"ratio_to_softmax", [](const Record& r) { return json_of(r.ratio_to_softmax); }, Style::measured, human_ratio},
    {"ratio_to_torch_softmax", [](const Record& r) { return json_of(r.ratio_to_torch_softmax); }, Style::measured, human_ratio},
    {"state_bytes", [](const Record& r) { return json_of(r.state_bytes); }, Style::measured, human_bytes},
    {"peak_rss_bytes", [](const Record& r) { return json_of(r.peak_rss_bytes); }, Style::measured, human_bytes},
    {"bytes_read", [](const Record& r) { return json_of(r.bytes_read); }, Style::measured, human_bytes},
    {"bandwidth_fraction", [](const Record& r) { return json_of(r.bandwidth_fraction); }, Style::measured, human_percent},
};

}  // namespace

void print_records(std::span<const Record> records, Format format, std::ostream& out) {
  print_table(kRecordColumns, records, format, out);
}

}  // namespace raffia::internal::bench
