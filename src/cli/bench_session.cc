// raffia bench session: what it costs to start, keep, move and copy a session.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/interleave.h"
#include "cli/model_bench.h"
#include "cli/shared/command.h"
#include "cli/shared/progress.h"
#include "cli/shared/table.h"
#include "io/formats/file.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "raffia/session.h"
#include "runtime/session_at_depth.h"

namespace raffia::cli {
namespace {

namespace fs = std::filesystem;

struct SessionFlags {
  // A language model of bytes with 20 MB of weights.
  ModelBenchOptions bench{
      .models = {.layers = 6, .width = 256, .heads = 4, .vocabulary = 260, .estimators = {parse_estimator("rfa_gate")}},
      .cache_limit = 1};
  std::vector<int64_t> depths = {100, 100000};
  int64_t prompt = 8192;
};

struct SessionRecord {
  std::string test, op;
  std::optional<std::string> model;
  int64_t depth = 0, threads = 0, weight_bytes = 0;
  std::optional<int64_t> bytes;  // of the file, or of the snapshot
  double seconds = 0;
};

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
    throw UsageError(fmt::format("--vocabulary: {} does not match the byte tokenizer, expected {}", bench.config.vocabulary,
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

// A process that loads the model, reads a prompt, writes one token and ends.
void generate_one_token(const BenchModel& bench, int64_t threads) {
  const std::string& directory = bench.directory;
  const std::string count = std::to_string(threads);
  const pid_t child = fork();
  if (child < 0) throw IoError(fmt::format("fork: {}", std::strerror(errno)));
  if (child == 0) {
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, stream);
    execl("/proc/self/exe", "raffia", "generate", directory.c_str(), "--prompt", "A", "--tokens", "1", "--greedy", "--threads",
          count.c_str(), bench.no_mmap ? "--no-mmap" : nullptr, nullptr);
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw IoError(fmt::format("waitpid: {}", std::strerror(errno)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Error(fmt::format("raffia generate {} failed, expected one token; run it to see why", directory));
  }
}

// The tests of one model, which take turns.
class SessionTests {
 public:
  SessionTests(const BenchModel& bench, const SessionFlags& flags, const fs::path& workplace)
      : bench_(bench), flags_(flags), workplace_(workplace), model_(Model::load(bench.directory, {.map = !bench.no_mmap})) {
    (void)model_->fingerprint();  // computed once per process, not once per session
  }

  std::vector<SessionRecord> run(Progress& progress) {
    start();
    for (const int64_t depth : flags_.depths) {
      const auto bytes = static_cast<double>(bench_.state_bytes_at(depth));
      if (bytes > 1e9 * static_cast<double>(flags_.bench.cache_limit)) {
        progress.note(fmt::format("{} is skipped at depth {}: the memory of a session exceeds --cache-limit {} GB", bench_.op,
                                  depth, flags_.bench.cache_limit));
        continue;
      }
      at_depth(depth);
    }
    prefix_hit();
    interleave(contenders_, static_cast<int>(flags_.bench.repeats), progress);
    for (size_t i = 0; i < records_.size(); ++i) records_[i].seconds = contenders_[i].seconds;
    return std::move(records_);
  }

 private:
  int64_t threads() const { return flags_.bench.threads.front(); }
  SessionOptions options() const { return {.run = {.threads = static_cast<int>(threads())}}; }

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
    add("start to first token", 0, std::nullopt, [this] { generate_one_token(bench_, threads()); });
  }

  void at_depth(int64_t depth) {
    const auto session = std::make_shared<Session>(runtime::session_at_depth(model_, depth, options()));
    const fs::path file = workplace_ / fmt::format("{}.session", depth);
    session->save(file);
    const auto bytes = static_cast<int64_t>(fs::file_size(file));
    add("save", depth, bytes, [session, file] { session->save(file); });
    add("restore", depth, bytes, [this, file] { (void)Session::restore(model_, file, options()); });
    add("fork", depth, static_cast<int64_t>(session->state_bytes()), [session] { const Session copy = *session; });
  }

  void prefix_hit() {
    const auto cache = std::make_shared<PrefixCache>(model_, PrefixCache::Options{});
    // Token 0 is in every vocabulary; the time does not depend on the token.
    const auto ids = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(flags_.prompt), 0);
    const auto read = [this, cache, ids] {
      Session session(model_, options());
      session.prefill(*ids, cache.get());
    };
    read();
    add("known prompt", flags_.prompt, static_cast<int64_t>(cache->counts().bytes), read);
    add("unknown prompt", flags_.prompt, std::nullopt, [this, ids] {
      Session session(model_, options());
      session.prefill(*ids);
    });
  }

  const BenchModel& bench_;
  const SessionFlags& flags_;
  fs::path workplace_;
  std::shared_ptr<const Model> model_;
  std::vector<SessionRecord> records_;
  std::vector<Contender> contenders_;
};

void run(const SessionFlags& flags) {
  // Removed at the end of this run, or by the next one if this one is killed.
  const TemporaryEntry workplace(fs::temp_directory_path(), TemporaryEntry::Kind::directory, "bench");
  std::vector<SessionRecord> records;
  {
    std::vector<std::vector<BenchModel>> groups = models_of(flags.bench.models);
    int64_t models = 0;
    for (auto& group : groups) models += std::ssize(group);
    const auto tests = static_cast<double>(3 + 3 * std::ssize(flags.depths));
    Progress progress(tests * static_cast<double>(models * (flags.bench.repeats + 1)));
    for (auto& group : groups) {
      for (BenchModel& bench : group) {
        progress.begin(fmt::format("sessions of {}", bench.op));
        if (bench.directory.empty()) bench.directory = stored(bench, workplace.path() / fmt::format("model-{}", records.size()));
        for (SessionRecord& record : SessionTests(bench, flags, workplace.path()).run(progress)) {
          records.push_back(std::move(record));
        }
      }
    }
  }
  print_table<SessionRecord>(kSessionColumns, records, flags.bench.output.format(), std::cout);
}

}  // namespace

Run add_bench_session(CommandLine& command) {
  const auto flags = std::make_shared<SessionFlags>();
  add_model_flags(command, flags->bench.models);
  add_counts(command, "--depths", flags->depths, "Tokens that a session has read before it is saved, restored and forked");
  add_positive(command, "--prompt-tokens", flags->prompt, "Length of the prompt in the prefix cache, in tokens");
  add_run_flags(command, flags->bench);
  return [flags] { run(*flags); };
}

}  // namespace raffia::cli
