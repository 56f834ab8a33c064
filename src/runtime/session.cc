#include "raffia/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "core/check.h"
#include "io/formats/file.h"
#include "io/formats/image.h"
#include "io/formats/session_file.h"
#include "model/model_directory.h"
#include "raffia/error.h"
#include "runtime/graph.h"
#include "runtime/model_access.h"
#include "runtime/prefix_cache.h"
#include "runtime/sampler.h"
#include "runtime/session_at_depth.h"
#include "runtime/token_stream.h"

namespace raffia {

using namespace internal;

using runtime::AttentionMemory;
using runtime::Graph;
using runtime::graph_of;
using runtime::Memories;
using runtime::Stack;
using runtime::Turn;
using runtime::Workspace;

namespace {

constexpr size_t kMinRecent = 64;
constexpr int32_t kNobody = -1;  // in place of tokens not read yet, so that the file size is constant from the start

// Rows of caches that only grow are not copied: truncating the cache restores them.
Memories without_growing(const Memories& memory, const Stack& stack) {
  Memories copy;
  for (size_t i = 0; i < memory.size(); ++i) {
    if (stack.memory_grows(i)) {
      copy.push_back({.past = KeyCache(memory[i].past.key_cache()->shape()), .tail = memory[i].tail});
    } else {
      copy.push_back(memory[i]);
    }
  }
  return copy;
}

void restore_growing(Memories& memory, const Memories& snapshot, const Stack& stack, int64_t position) {
  for (size_t i = 0; i < memory.size(); ++i) {
    if (stack.memory_grows(i)) {
      memory[i].past.key_cache()->truncate(0, position);
      memory[i].tail = snapshot[i].tail;
    } else {
      memory[i] = snapshot[i];
    }
  }
}

}  // namespace

struct Session::Impl {
  // A state that a rollback can start from.
  struct Snapshot {
    int64_t position;
    Memories memory;
    std::vector<float> logits;
    std::vector<int32_t> recent;
    uint64_t draws;
  };
  // Tokens that were read together. A rollback reads them again in the same pieces, which gives the same bits.
  struct Piece {
    int64_t begin;
    std::vector<int32_t> ids;
    uint64_t draws;  // number of draws made by then
  };

  Impl(std::shared_ptr<const Model> of, const SessionOptions& with) : model(std::move(of)), options(with) {
    require(model != nullptr, "Session: model is null");
    graph_of(*model).require_task("Session", Task::lm);
    options.sampling.check("Session");
    require(options.snapshot_every >= 0 && options.snapshots >= 1,
            "Session: snapshot_every is {} and snapshots {}, expected 0 or more and 1 or more", options.snapshot_every,
            options.snapshots);
    memory = graph().decoder().empty_memory();
    start_record();
  }
  Impl(const Impl& other)
      : model(other.model),
        options(other.options),
        memory(other.memory),
        position(other.position),
        logits(other.logits),
        recent(other.recent),
        draws(other.draws),
        snapshots(other.snapshots),
        pieces(other.pieces) {}

  const Graph& graph() const { return graph_of(*model); }

  void check(std::string_view function, std::span<const int32_t> ids) const {
    graph().require_ids(function, ids);
    graph().require_room(function, graph().decoder(), position + static_cast<int64_t>(ids.size()));
  }

  size_t max_recent() const { return std::max(kMinRecent, static_cast<size_t>(options.sampling.repetition_window)); }

  void remember(std::span<const int32_t> ids) {
    recent.insert(recent.end(), ids.begin(), ids.end());
    const size_t max = max_recent();
    if (recent.size() > max) recent.erase(recent.begin(), recent.end() - static_cast<ptrdiff_t>(max));
  }

  // Reads at most kChunk tokens. `wants_all`: writes the logits after each token to all_logits.
  void read_piece(std::span<const int32_t> ids, bool wants_all) {
    const auto rows = static_cast<int64_t>(ids.size());
    const auto vocabulary = static_cast<size_t>(graph().config().vocabulary);
    const std::vector<int64_t> positions = runtime::positions_from(position, rows);
    Memories* session = &memory;
    const Turn turn{.form = rows == 1 ? Turn::Form::step : Turn::Form::sequence,
                    .sessions = {&session, 1},
                    .positions = positions,
                    .run = options.run};
    logits.resize(vocabulary);
    if (wants_all) {
      all_logits.resize(ids.size() * vocabulary);
      graph().decode(ids, turn, work, all_logits);
      std::ranges::copy(std::span(all_logits).last(vocabulary), logits.begin());
    } else {
      graph().decode(ids, turn, work, logits);
    }
    position += rows;
    remember(ids);
  }

  // Pieces end at multiples of kChunk and at the end of the ids. So a prompt that is passed in multiples of kChunk is read in the
  // same pieces.
  void read(std::span<const int32_t> ids, const std::function<void(int64_t, std::span<const float>)>& on_logits,
            const std::function<void()>& after_piece) {
    int64_t done = 0;
    while (done < static_cast<int64_t>(ids.size())) {
      const int64_t count = std::min(static_cast<int64_t>(ids.size()) - done, kChunk - position % kChunk);
      const std::span<const int32_t> piece = ids.subspan(static_cast<size_t>(done), static_cast<size_t>(count));
      const int64_t begin = position;
      read_piece(piece, static_cast<bool>(on_logits));
      record(begin, piece);
      // Call on_logits only after the session is consistent: it may throw.
      if (on_logits) {
        const size_t vocabulary = logits.size();
        for (int64_t row = 0; row < count; ++row) {
          on_logits(done + row, std::span(all_logits).subspan(static_cast<size_t>(row) * vocabulary, vocabulary));
        }
      }
      if (after_piece) after_piece();
      done += count;
    }
  }

  void start_record() {
    snapshots.clear();
    pieces.clear();
    if (options.snapshot_every > 0) take_snapshot();
  }
  void take_snapshot() { snapshots.push_back({position, without_growing(memory, graph().decoder()), logits, recent, draws}); }

  void record(int64_t begin, std::span<const int32_t> ids) {
    if (options.snapshot_every == 0) return;
    pieces.push_back({begin, {ids.begin(), ids.end()}, draws});
    if (position - snapshots.back().position < options.snapshot_every) return;
    take_snapshot();
    if (static_cast<int64_t>(snapshots.size()) <= options.snapshots) return;
    snapshots.pop_front();
    while (!pieces.empty() && pieces.front().begin < snapshots.front().position) pieces.pop_front();
  }

  std::shared_ptr<const Model> model;
  SessionOptions options;
  Memories memory;
  int64_t position = 0;
  std::vector<float> logits;
  std::vector<int32_t> recent;
  uint64_t draws = 0;
  std::deque<Snapshot> snapshots;  // oldest first
  std::deque<Piece> pieces;        // since the oldest snapshot
  Workspace work;
  std::vector<float> all_logits;
};

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(model), options)) {}
Session::Session(const Session& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Session& Session::operator=(const Session& other) {
  if (this != &other) impl_ = std::make_unique<Impl>(*other.impl_);
  return *this;
}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

const Model& Session::model() const { return *impl_->model; }
int64_t Session::position() const { return impl_->position; }
const RunOptions& Session::run() const { return impl_->options.run; }
size_t Session::state_bytes() const { return runtime::size_bytes(impl_->memory); }
std::span<const float> Session::logits() const { return impl_->logits; }
std::span<const int32_t> Session::recent() const { return impl_->recent; }
const SamplingOptions& Session::sampling() const { return impl_->options.sampling; }

void Session::set_sampling(const SamplingOptions& sampling) {
  sampling.check("Session::set_sampling");
  if (sampling.seed != impl_->options.sampling.seed) {
    // Also in snapshots: the count of draws starts again with a new seed.
    impl_->draws = 0;
    for (Impl::Snapshot& snapshot : impl_->snapshots) snapshot.draws = 0;
    for (Impl::Piece& piece : impl_->pieces) piece.draws = 0;
  }
  impl_->options.sampling = sampling;
  impl_->remember({});  // trims to the new repetition window
}

int64_t Session::prefill(std::string_view text, PrefixCache* cache) {
  return prefill(runtime::tokens_of(model().tokenizer(), text, position() == 0), cache);
}

int64_t Session::prefill(std::span<const int32_t> ids, PrefixCache* cache) {
  Impl& self = *impl_;
  self.check("Session::prefill", ids);
  if (cache == nullptr || self.position > 0) {
    self.read(ids, {}, {});
    return 0;
  }
  PrefixCache::Impl& known = *cache->impl_;
  require(known.model == self.model, "Session::prefill: the cache belongs to another model");
  int64_t found = 0;
  if (const auto snapshot = known.find(ids)) {
    found = snapshot->position;
    self.memory = snapshot->memory;
    self.logits = snapshot->logits;
    self.position = found;
    self.remember(ids.first(static_cast<size_t>(found)));
    self.start_record();
  }
  const int64_t last = static_cast<int64_t>(ids.size()) / kChunk * kChunk;
  self.read(ids.subspan(static_cast<size_t>(found)), {}, [&] {
    const bool is_kept = self.position == last || (self.position < last && self.position % known.options.every == 0);
    const std::span<const int32_t> prefix = ids.first(static_cast<size_t>(self.position));
    if (!is_kept || known.knows(prefix) || !known.has_room_for(prefix, self.memory, self.logits)) return;
    known.insert(prefix, {self.position, self.memory, self.logits});
  });
  return found;
}

void Session::prefill(std::span<const int32_t> ids,
                      const std::function<void(int64_t index, std::span<const float> logits)>& on_logits) {
  impl_->check("Session::prefill", ids);
  impl_->read(ids, on_logits, {});
}

void Session::step(int32_t id) {
  Session* const self = this;
  step({&self, 1}, {&id, 1}, impl_->options.run);
}

void Session::step(std::span<Session* const> sessions, std::span<const int32_t> ids, const RunOptions& options) {
  require(sessions.size() == ids.size(), "Session::step: {} sessions and {} ids, expected one id per session", sessions.size(),
          ids.size());
  if (sessions.empty()) return;
  std::vector<Memories*> memories;
  std::vector<int64_t> positions;
  for (size_t i = 0; i < sessions.size(); ++i) {
    require(sessions[i] != nullptr, "Session::step: session {} is null", i);
    Impl& one = *sessions[i]->impl_;
    require(one.model == sessions[0]->impl_->model, "Session::step: session {} belongs to another model than session 0", i);
    one.check("Session::step", ids.subspan(i, 1));
    memories.push_back(&one.memory);
    positions.push_back(one.position);
  }
  std::vector<Memories*> sorted = memories;
  std::ranges::sort(sorted);
  require(std::ranges::adjacent_find(sorted) == sorted.end(),
          "Session::step: a session is given twice, expected distinct sessions");

  Impl& first = *sessions[0]->impl_;
  const Graph& graph = first.graph();
  const int64_t vocabulary = graph.config().vocabulary;
  first.all_logits.resize(ids.size() * static_cast<size_t>(vocabulary));
  graph.decode(ids, {.form = Turn::Form::step, .sessions = memories, .positions = positions, .run = options}, first.work,
               first.all_logits);
  for (size_t i = 0; i < sessions.size(); ++i) {
    Impl& one = *sessions[i]->impl_;
    const auto from = first.all_logits.begin() + static_cast<ptrdiff_t>(i) * vocabulary;
    one.logits.assign(from, from + vocabulary);
    ++one.position;
    one.remember(ids.subspan(i, 1));
    one.record(one.position - 1, ids.subspan(i, 1));
  }
}

int32_t Session::sample() {
  Impl& self = *impl_;
  require(!self.logits.empty(), "Session::sample: the session has read nothing, expected at least one token");
  const auto window = std::min(self.recent.size(), static_cast<size_t>(self.options.sampling.repetition_window));
  const std::span<const int32_t> recent = std::span(self.recent).last(window);
  return runtime::choose(self.logits, recent, self.options.sampling, self.draws++);
}

double Session::log_probability(int32_t id) const {
  impl_->graph().require_ids("Session::log_probability", {&id, 1});
  require(!impl_->logits.empty(), "Session::log_probability: the session has read nothing, expected at least one token");
  return impl_->logits[static_cast<size_t>(id)] - runtime::log_sum(impl_->logits);
}

std::vector<TokenScore> Session::likeliest(int64_t count) const {
  std::vector<TokenScore> scores;
  if (impl_->logits.empty()) return scores;
  const double sum = runtime::log_sum(impl_->logits);
  for (const int32_t id : runtime::largest(impl_->logits, count)) {
    scores.push_back({id, impl_->logits[static_cast<size_t>(id)] - sum});
  }
  return scores;
}

int64_t Session::room() const {
  const int64_t max = impl_->graph().decoder().max_positions();
  return max == 0 ? INT64_MAX : max - impl_->position;
}

int64_t Session::rollback_limit() const {
  return impl_->snapshots.empty() ? 0 : impl_->position - impl_->snapshots.front().position;
}

void Session::rollback(int64_t tokens) {
  Impl& self = *impl_;
  require(tokens >= 0 && tokens <= rollback_limit(), "Session::rollback: {} tokens, expected 0 to {} (the oldest snapshot)",
          tokens, rollback_limit());
  if (tokens == 0) return;
  const int64_t target = self.position - tokens;
  while (self.snapshots.back().position > target) self.snapshots.pop_back();
  const Impl::Snapshot& from = self.snapshots.back();
  restore_growing(self.memory, from.memory, self.graph().decoder(), from.position);
  self.position = from.position;
  self.logits = from.logits;
  self.recent = from.recent;
  self.draws = from.draws;
  self.remember({});  // trims to the current repetition window

  std::deque<Impl::Piece> kept, again;
  for (Impl::Piece& piece : self.pieces) {
    if (piece.begin < from.position) {
      kept.push_back(std::move(piece));
    } else if (piece.begin < target) {
      piece.ids.resize(std::min(piece.ids.size(), static_cast<size_t>(target - piece.begin)));
      again.push_back(std::move(piece));
    }
  }
  self.pieces = std::move(kept);
  for (Impl::Piece& piece : again) {
    self.read_piece(piece.ids, false);
    self.draws = piece.draws;
    self.pieces.push_back(std::move(piece));
  }
}

std::vector<std::byte> Session::to_bytes() const {
  const Impl& self = *impl_;
  self.model->require_unchanged();
  SessionImage image{.fingerprint = self.model->fingerprint(),
                     .position = self.position,
                     .draws = self.draws,
                     .sampling = self.options.sampling,
                     .recent = std::vector<int32_t>(self.max_recent() - self.recent.size(), kNobody),
                     .logits = self.logits,
                     .parts = {}};
  image.recent.insert(image.recent.end(), self.recent.begin(), self.recent.end());
  for (const AttentionMemory& one : self.memory) image.parts.push_back({.past = one.past, .tail = one.tail});
  return raffia::to_bytes(image);
}

void Session::save(const std::filesystem::path& path) const {
  require(!is_file_of_model(path, model().directory()),
          "{}: is a file of a model, which a state would replace: expected another name", path.string());
  save_image(path, to_bytes());
}

namespace {

void require_fingerprint(uint64_t found, const Model& model, std::string_view where) {
  require(found == model.fingerprint(),
          "{}: the session belongs to a model with fingerprint {:016x}, expected {:016x} (this model)", where, found,
          model.fingerprint());
}

// The largest file that a session of this model can have at this position.
uint64_t max_bytes_of_file(const Graph& graph, int64_t position) {
  constexpr uint64_t kFrame = uint64_t{1} << 20;          // headers, sampling, the longest list of recent tokens
  constexpr uint64_t kFrameOfMemory = uint64_t{1} << 10;  // header and shape of one
  const uint64_t memory = graph.decoder().memory_bytes(position);
  const auto rest = kFrame + static_cast<uint64_t>(graph.config().layers) * kFrameOfMemory +
                    static_cast<uint64_t>(graph.config().vocabulary) * sizeof(float);
  return memory > UINT64_MAX - rest ? UINT64_MAX : memory + rest;
}

}  // namespace

Session Session::restore(std::shared_ptr<const Model> model, const std::filesystem::path& path, const SessionOptions& options) {
  require(model != nullptr, "Session::restore: model is null");
  graph_of(*model).require_task("Session::restore", Task::lm);
  const auto fits = [&](const SessionHeader& header) {
    require_fingerprint(header.fingerprint, *model, path.string());
    if (const int64_t room = graph_of(*model).decoder().max_positions(); room > 0 && header.position > room) return uint64_t{0};
    return max_bytes_of_file(graph_of(*model), header.position);
  };
  const std::vector<std::byte> bytes = read_session_file(path, fits);
  return from_bytes(std::move(model), bytes, options, path.string());
}

Session Session::from_bytes(std::shared_ptr<const Model> model, std::span<const std::byte> bytes, const SessionOptions& options,
                            std::string_view where) {
  SessionImage image = session_from_bytes(bytes, where);
  Session session(std::move(model), options);
  Impl& self = *session.impl_;
  require_fingerprint(image.fingerprint, *self.model, where);
  // The fingerprint matches, so any mismatch below is damage that the checksum did not detect.
  const auto vocabulary = static_cast<size_t>(self.graph().config().vocabulary);
  const auto refuse = [&](std::string_view what) {
    throw FormatError(fmt::format("{}: {} of the session does not match the model", where, what));
  };
  if (image.parts.size() != self.memory.size()) refuse("the number of memories");
  if (image.logits.size() != (image.position == 0 ? 0 : vocabulary)) refuse("the number of logits");
  image.recent.erase(image.recent.begin(), std::ranges::find_if(image.recent, [](int32_t id) { return id != kNobody; }));
  for (const int32_t id : image.recent) {
    if (id < 0 || static_cast<size_t>(id) >= vocabulary) refuse("a recent token");
  }
  for (size_t i = 0; i < image.parts.size(); ++i) {
    AttentionMemory& one = self.memory[i];
    SessionImage::Part& part = image.parts[i];
    if (part.tail.size() != one.tail.size() || !part.past.has_shape_of(one.past) ||
        part.past.tokens(0).value_or(image.position) != image.position ||
        part.past.size_bytes() + one.tail.size() * sizeof(float) != self.graph().decoder().memory_bytes(i, image.position)) {
      refuse(fmt::format("the {} of memory {}", one.past.kind(), i));
    }
    one.past = std::move(part.past);
    one.tail = std::move(part.tail);
  }
  self.position = image.position;
  self.draws = image.draws;
  self.options.sampling = image.sampling;
  self.recent = std::move(image.recent);
  self.remember({});
  self.logits = std::move(image.logits);
  self.start_record();
  return session;
}

namespace internal {

class SessionAccess {
 public:
  static Session::Impl& impl(Session& session) { return *session.impl_; }
};

namespace runtime {

Session session_at_depth(std::shared_ptr<const Model> model, int64_t depth, const SessionOptions& options) {
  // Enough to fill the windows, summaries and samples of any sensible estimator; after that, costs repeat from window to window.
  constexpr int64_t kFilled = 16 * Session::kChunk;
  Session session(std::move(model), options);
  auto& self = internal::SessionAccess::impl(session);
  const bool has_windows =
      std::ranges::any_of(self.memory, [](const AttentionMemory& one) { return one.past.window_state() != nullptr; });
  const int64_t min = has_windows ? kFilled : Session::kChunk;
  const int64_t read = depth <= min ? depth : min + depth % min;
  std::vector<int32_t> ids(static_cast<size_t>(read));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>((i * 7919) % static_cast<size_t>(self.graph().config().vocabulary));
  session.prefill(ids);
  for (size_t i = 0; i < self.memory.size(); ++i) {
    Memory& past = self.memory[i].past;
    if (KeyCache* cache = past.key_cache()) {
      const KeyCacheShape& shape = cache->shape();
      const size_t row = static_cast<size_t>(shape.heads * (shape.dim + shape.value_dim)) * sizeof(float);
      const uint64_t bytes = *self.graph().decoder().memory_bytes(i, depth) - self.memory[i].tail.size() * sizeof(float);
      const auto rows = static_cast<int64_t>(bytes / row);
      cache->append_copies(0, std::max<int64_t>(0, rows - cache->rows(0)));
      cache->keep_last(0, rows);
      cache->count_as(0, depth);
    }
    if (WindowState* window = past.window_state()) window->tokens(0) = depth;
  }
  self.position = depth;
  self.start_record();
  return session;
}

}  // namespace runtime
}  // namespace internal

SessionFileInfo read_session_info(const std::filesystem::path& path) {
  const std::vector<std::byte> bytes = read_session_file(path);
  const SessionImage image = session_from_bytes(bytes, path.string());
  SessionFileInfo info{.fingerprint = image.fingerprint,
                       .position = image.position,
                       .draws = image.draws,
                       .sampling = image.sampling,
                       .vocabulary = static_cast<int64_t>(image.logits.size()),
                       .memories = {},
                       .bytes = bytes.size()};
  for (const SessionImage::Part& part : image.parts) {
    if (const State* state = part.past.state()) {
      const StateShape& s = state->shape();
      info.memories.push_back(
          fmt::format("state, {} heads x {} features x {}: {} bytes", s.heads, s.features, s.value_dim + 1, state->size_bytes()));
    } else if (const WindowState* window = part.past.window_state()) {
      info.memories.push_back(fmt::format("{} state, window {}: {} bytes", name_of(window->shape().kind), window->shape().window,
                                          window->size_bytes()));
    } else {
      const KeyCache& cache = *part.past.key_cache();
      info.memories.push_back(fmt::format("{} keys and values, {} heads x {}: {} bytes", cache.rows(0), cache.shape().heads,
                                          cache.shape().dim, cache.size_bytes()));
    }
  }
  return info;
}

}  // namespace raffia
