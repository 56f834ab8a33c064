// Benchmarks of whole models. Tests have the names of llama-bench: pp512 reads a prompt of 512 tokens, tg32 @ d4096 generates 32
// tokens after 4096.
#ifndef RAFFIA_BENCH_MODEL_BENCH_H_
#define RAFFIA_BENCH_MODEL_BENCH_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "bench/format.h"
#include "bench/models.h"
#include "bench/observer.h"

namespace raffia::internal::bench {

struct ModelTest {
  enum class Kind : uint8_t { prefill, decode };
  Kind kind = Kind::decode;
  int64_t tokens = 0;  // of one session, in one run
  int64_t depth = 0;   // tokens before
  int64_t batch = 1;   // sessions

  std::string name() const;
};

struct ModelBenchOptions {
  ModelChoice models;
  std::vector<int64_t> threads = {1};
  int64_t repeats = 5;
  int64_t cache_limit = 4;  // 10^9 bytes: tests whose sessions need more memory are skipped
};

// The fields with the names they are printed under; docs/cli.md explains them.
struct ModelRecord {
  std::string test, op;
  std::optional<std::string> model;
  std::string type;
  int64_t batch = 0, depth = 0, threads = 0;
  std::string isa;
  int64_t layers = 0, width = 0, heads = 0, vocabulary = 0, parameters = 0;
  double seconds = 0, tokens_per_second = 0;
  std::optional<double> ratio_to_softmax;
  int64_t state_bytes = 0, weight_bytes = 0;
  std::optional<double> weight_gbps, bandwidth_gbps, bandwidth_fraction;  // decode, batch 1
  std::optional<double> product_gflops, peak_gflops, peak_fraction;       // prefill
  std::optional<int64_t> peak_rss_bytes;
};

// Measures memory, then time. Call it before the first thread is started: it forks. Throws OptionError for models that there are
// not.
std::vector<ModelRecord> measure_models(const std::vector<ModelTest>& tests, const ModelBenchOptions& options,
                                        Observer& observer);

void print_records(std::span<const ModelRecord> records, Format format, std::ostream& out);

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_MODEL_BENCH_H_
