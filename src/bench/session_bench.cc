#include "bench/session_bench.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/error.h"
#include "bench/interleave.h"
#include "bench/table.h"
#include "io/formats/file.h"
#include "model/model_directory.h"
#include "raffia/session.h"
#include "raffia/tokenizer.h"
#include "runtime/session_at_depth.h"

namespace raffia::internal::bench {
namespace {

namespace fs = std::filesystem;

const RecordColumn<SessionRecord> kSessionColumns[] = {
    {"test", [](const SessionRecord& r) { return json_of(r.test); }, Style::key},
    {"op", [](const SessionRecord& r) { return json_of(r.op); }, Style::key},
    {"model", [](const SessionRecord& r) { return json_of(r.model); }},
    {"depth", [](const SessionRecord& r) { return json_of(r.depth); }, Style::key},
    {"threads", [](const SessionRecord& r) { return json_of(r.threads); }},
    {"weight_bytes", [](const SessionRecord& r) { return json_of(r.weight_bytes); }, Style::shared, human_bytes},
    {"bytes", [](const SessionRecord& r) { return json_of(r.bytes); }, Style::measured, human_bytes},
    {"seconds", [](const SessionRecord& r) { return json_of(r.seconds); }, Style::measured, human_time},
};

// A model of random weights as a directory, with the tokenizer of bytes.
std::string stored(BenchModel& bench, const fs::path& directory) {
  const std::unique_ptr<Tokenizer> tokenizer = train_tokenizer({.kind = "byte"}, {});
  if (tokenizer->vocabulary() != bench.config.vocabulary) {
    throw OptionError(fmt::format("--vocabulary: {} does not match the byte tokenizer, expected {}", bench.config.vocabulary,
                                  tokenizer->vocabulary()));
  }
  fs::create_directories(directory);
  save_model_config(bench.config, directory / kConfigFile);
  tokenizer->save(directory);
  bench.prepare();
  ReplacementFile file(directory / kWeightsFile);
  file.write(bench.weights);
  file.commit();
  return directory.string();
}

// The tests of one model, which take turns.
class SessionTests {
 public:
  SessionTests(const BenchModel& bench, const SessionBenchOptions& options, const fs::path& workplace)
      : bench_(bench), options_(options), workplace_(workplace), model_(Model::load(bench.directory, {.map = !bench.no_mmap})) {
    (void)model_->fingerprint();  // computed once per process, not once per session
  }

  std::vector<SessionRecord> run(Observer& observer) {
    start();
    for (const int64_t depth : options_.depths) {
      const auto bytes = static_cast<double>(bench_.state_bytes_at(depth));
      if (bytes > 1e9 * static_cast<double>(options_.bench.cache_limit)) {
        observer.note(fmt::format("{} is skipped at depth {}: the memory of a session exceeds --cache-limit {} GB", bench_.op,
                                  depth, options_.bench.cache_limit));
        continue;
      }
      at_depth(depth);
    }
    prefix_hit();
    interleave(contenders_, static_cast<int>(options_.bench.repeats), observer);
    for (size_t i = 0; i < records_.size(); ++i) records_[i].seconds = contenders_[i].seconds;
    return std::move(records_);
  }

 private:
  int64_t threads() const { return options_.bench.threads.front(); }
  SessionOptions session_options() const { return {.run = {.threads = static_cast<int>(threads())}}; }

  void add(const std::string& test, int64_t depth, std::optional<int64_t> bytes, std::function<void()> timed) {
    records_.push_back({.test = test,
                        .op = bench_.op,
                        .model = bench_.name,
                        .depth = depth,
                        .threads = threads(),
                        .weight_bytes = static_cast<int64_t>(model_->weight_bytes()),
                        .bytes = bytes});
    contenders_.push_back({.run = std::move(timed), .work = 1});
  }

  void start() {
    add("start to first token", 0, std::nullopt, [this] { options_.start(bench_, threads()); });
  }

  void at_depth(int64_t depth) {
    const auto session = std::make_shared<Session>(runtime::session_at_depth(model_, depth, session_options()));
    const fs::path file = workplace_ / fmt::format("{}.session", depth);
    session->save(file);
    const auto bytes = static_cast<int64_t>(fs::file_size(file));
    add("save", depth, bytes, [session, file] { session->save(file); });
    add("restore", depth, bytes, [this, file] { (void)Session::restore(model_, file, session_options()); });
    add("fork", depth, static_cast<int64_t>(session->state_bytes()), [session] { const Session copy = *session; });
  }

  void prefix_hit() {
    const auto cache = std::make_shared<PrefixCache>(model_, PrefixCache::Options{});
    // Token 0 is in every vocabulary; the time does not depend on the token.
    const auto ids = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(options_.prompt), 0);
    const auto read = [this, cache, ids] {
      Session session(model_, session_options());
      session.prefill(*ids, cache.get());
    };
    read();
    add("known prompt", options_.prompt, static_cast<int64_t>(cache->counts().bytes), read);
    add("unknown prompt", options_.prompt, std::nullopt, [this, ids] {
      Session session(model_, session_options());
      session.prefill(*ids);
    });
  }

  const BenchModel& bench_;
  const SessionBenchOptions& options_;
  fs::path workplace_;
  std::shared_ptr<const Model> model_;
  std::vector<SessionRecord> records_;
  std::vector<Contender> contenders_;
};

}  // namespace

std::vector<SessionRecord> measure_sessions(const SessionBenchOptions& options, Observer& observer) {
  // Removed at the end of this run, or by the next one if this one is killed.
  const TemporaryEntry workplace(fs::temp_directory_path(), TemporaryEntry::Kind::directory, "bench");
  std::vector<SessionRecord> records;
  std::vector<std::vector<BenchModel>> groups = models_of(options.bench.models);
  int64_t models = 0;
  for (auto& group : groups) models += std::ssize(group);
  const auto tests = static_cast<double>(3 + 3 * std::ssize(options.depths));
  observer.start(tests * static_cast<double>(models * (options.bench.repeats + 1)));
  for (auto& group : groups) {
    for (BenchModel& bench : group) {
      observer.begin(fmt::format("sessions of {}", bench.op));
      if (bench.directory.empty()) bench.directory = stored(bench, workplace.path() / fmt::format("model-{}", records.size()));
      for (SessionRecord& record : SessionTests(bench, options, workplace.path()).run(observer)) {
        records.push_back(std::move(record));
      }
    }
  }
  return records;
}

void print_records(std::span<const SessionRecord> records, Format format, std::ostream& out) {
  print_table(kSessionColumns, records, format, out);
}

}  // namespace raffia::internal::bench
