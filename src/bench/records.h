// Results of a benchmark, one record per contender and shape, and how they are printed.
#ifndef RAFFIA_BENCH_RECORDS_H_
#define RAFFIA_BENCH_RECORDS_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>

#include "bench/format.h"

namespace raffia::internal::bench {

// The fields with the names they are printed under; docs/cli.md explains them.
struct Record {
  std::string op, pass, input;
  bool causal = false;
  std::optional<std::string> map;  // nullopt: the op has no map
  int64_t threads = 0;
  std::string isa;
  int64_t batch = 0, heads = 0, kv_heads = 0, length = 0, head_dim = 0, value_dim = 0;
  std::optional<int64_t> features;  // F, or R of causal eva; nullopt: the op has no random features
  std::optional<int64_t> samples;   // lara, ra, eva
  std::optional<int64_t> window;    // hybrid, eva, causal lara
  std::optional<int64_t> segment;   // as requested; nullopt: the op has no segments
  std::optional<int64_t> layers;    // bench train, whole models
  std::string dtype;
  double seconds = 0;
  std::optional<double> tokens_per_second;  // bench train
  double gflops = 0;
  double peak_fraction = 0;
  std::optional<double> ratio_to_softmax;
  std::optional<double> ratio_to_torch_softmax;  // bench train
  std::optional<int64_t> state_bytes;            // nullopt: the op has no state
  std::optional<int64_t> peak_rss_bytes;
  std::optional<int64_t> bytes_read;         // step, softmax
  std::optional<double> bandwidth_fraction;  // step, softmax
};

void print_records(std::span<const Record> records, Format format, std::ostream& out);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_RECORDS_H_
