#include "torch/train/distributed_liveness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <sstream>
#include <vector>

namespace raffia::internal::train {
namespace {

using Clock = std::chrono::steady_clock;

std::string beat_key(int rank) { return fmt::format("beat/{}", rank); }
std::string name_key(int rank) { return fmt::format("name/{}", rank); }

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

struct Liveness::Board {
  struct Peer {
    std::string name = {};  // "rank 1 (node7, pid 1234)"
    std::string beat = {};  // as last read
    int64_t collectives = 0;
    int signal = 0;            // that asks it to end
    std::string verdict = {};  // not empty: why it stops
    Clock::time_point seen = {};
  };

  c10::intrusive_ptr<c10d::Store> store;
  Place place;
  GroupOptions options;

  std::mutex mutex = {};
  std::condition_variable changed = {};
  std::vector<Peer> peers = {};
  Clock::time_point store_seen = {};  // when all beats were last read
  int64_t exchanges = 0;
  int64_t collectives = 0;
  int signal = 0;
  std::string verdict = {};
  bool store_gone = false;
  bool hurry = false;  // send a heartbeat immediately
  bool ends = false, ended = false;

  // Registers this rank, and reads the registrations of all.
  void meet() {
    store->set(name_key(place.rank), bytes_of(fmt::format("rank {} ({}, pid {})", place.rank, host_name(), ::getpid())));
    store->set(beat_key(place.rank), bytes_of("0 0 0 "));
    const Clock::time_point begin = Clock::now();
    peers.resize(static_cast<size_t>(place.size));
    std::vector<int> missing;
    for (;;) {
      missing.clear();
      for (int rank = 0; rank < place.size; ++rank) {
        Peer& peer = peers[static_cast<size_t>(rank)];
        if (!peer.name.empty()) continue;
        if (store->check({name_key(rank), beat_key(rank)})) {
          peer.name = text_of(store->get(name_key(rank)));
        } else {
          missing.push_back(rank);
        }
      }
      if (missing.empty()) break;
      if (Clock::now() - begin > options.timeout) {
        throw GroupError(fmt::format("rank {}: {} {} did not connect to {}:{} within {:.0f} s", place.rank,
                                     missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "), place.address, place.port,
                                     seconds(options.timeout)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    store_seen = Clock::now();
    for (Peer& peer : peers) peer.seen = store_seen;
  }

  // Sends one heartbeat and reads all others.
  void exchange(int64_t number) {
    std::string own;
    {
      const std::lock_guard lock(mutex);
      own = fmt::format("{} {} {} {}", number, collectives, signal, verdict);
    }
    store->set(beat_key(place.rank), bytes_of(own));
    for (int rank = 0; rank < place.size; ++rank) {
      const std::string beat = rank == place.rank ? own : text_of(store->get(beat_key(rank)));
      const std::lock_guard lock(mutex);
      Peer& peer = peers[static_cast<size_t>(rank)];
      if (beat == peer.beat) continue;
      peer.beat = beat;
      peer.seen = Clock::now();
      std::istringstream words(beat);
      int64_t count = 0;
      words >> count >> peer.collectives >> peer.signal >> std::ws;
      std::getline(words, peer.verdict);
    }
  }

  void beat_until_told() {
    for (int64_t number = 1;; ++number) {
      bool answered = true;
      try {
        exchange(number);
      } catch (const std::exception&) {
        answered = false;
      }
      std::unique_lock lock(mutex);
      if (answered) {
        store_seen = Clock::now();
        ++exchanges;
      } else {
        store_gone = true;
      }
      hurry = false;
      changed.notify_all();
      if (answered) changed.wait_for(lock, options.heartbeat, [&] { return ends || hurry; });
      if (ends || !answered) break;
    }
    const std::lock_guard lock(mutex);
    ended = true;
    changed.notify_all();
  }

  // The following are called with the mutex held.

  std::string gone(const Peer& peer) const {
    return fmt::format("{} no longer answers (last seen {:.1f} s ago)", peer.name, seconds(Clock::now() - peer.seen));
  }

  // The rank that has been silent longest, as of `now`; null if no rank missed enough heartbeats.
  const Peer* silent(Clock::time_point now, int missed_beats) const {
    const Peer* oldest = nullptr;
    for (const Peer& peer : peers) {
      if (!peer.verdict.empty() || now - peer.seen < missed_beats * options.heartbeat) continue;
      if (oldest == nullptr || peer.seen < oldest->seen) oldest = &peer;
    }
    return oldest;
  }

  // Empty as long as the cause is unknown.
  std::string judge(int missed_beats = kMissedBeats) const {
    for (const Peer& peer : peers) {
      if (!peer.verdict.empty()) return peer.verdict;
    }
    const Clock::time_point now = Clock::now();
    if (store_gone || now - store_seen >= missed_beats * options.heartbeat) {
      // Without the store no heartbeats arrive: only silence while it answered counts.
      const Peer* peer = silent(store_seen, kMissedBeats);
      return gone(peer != nullptr ? *peer : peers.front());
    }
    const Peer* peer = silent(now, missed_beats);
    return peer == nullptr ? std::string() : gone(*peer);
  }

  std::string laggard() const {
    const Peer* last = nullptr;
    for (const Peer& peer : peers) {
      if (peer.collectives < collectives && (last == nullptr || peer.collectives < last->collectives)) last = &peer;
    }
    if (last == nullptr) return {};
    return fmt::format("{} answers but did not reach collective {} within {:.0f} s (it has entered {})", last->name, collectives,
                       seconds(options.timeout), last->collectives);
  }
};

Liveness::Liveness(c10::intrusive_ptr<c10d::Store> store, const Place& place, const GroupOptions& options)
    : board_(new Board{.store = std::move(store), .place = place, .options = options}) {
  board_->meet();
  thread_ = std::thread([board = board_] { board->beat_until_told(); });
}

Liveness::~Liveness() {
  {
    std::unique_lock lock(board_->mutex);
    board_->ends = true;
    board_->changed.notify_all();
    board_->changed.wait_for(lock, kMissedBeats * board_->options.heartbeat, [&] { return board_->ended; });
    if (!board_->ended) thread_.detach();
  }
  if (thread_.joinable()) thread_.join();
}

void Liveness::entered_collective() {
  const std::lock_guard lock(board_->mutex);
  ++board_->collectives;
}

bool Liveness::suspects(int missed_beats) {
  const std::lock_guard lock(board_->mutex);
  return !board_->judge(missed_beats).empty();
}

void Liveness::asked_to_end(int signal) {
  const std::lock_guard lock(board_->mutex);
  board_->signal = signal;
}

int Liveness::signal_of_others() {
  const std::lock_guard lock(board_->mutex);
  for (size_t rank = 0; rank < board_->peers.size(); ++rank) {
    if (rank != static_cast<size_t>(board_->place.rank) && board_->peers[rank].signal != 0) return board_->peers[rank].signal;
  }
  return 0;
}

std::string Liveness::culprit() {
  Board& board = *board_;
  std::unique_lock lock(board.mutex);
  const auto beat = board.options.heartbeat;
  const Clock::time_point patience = Clock::now() + (kMissedBeats + 2) * beat;
  std::string verdict;
  while ((verdict = board.judge()).empty() && Clock::now() < patience) board.changed.wait_for(lock, beat / 2);
  if (verdict.empty()) verdict = board.laggard();
  if (board.store_gone) return verdict;

  board.verdict = verdict.empty() ? "a collective failed" : verdict;
  board.hurry = true;
  board.changed.notify_all();
  // The heartbeat with the cause must be sent; the rank with the store stays until the others have read it.
  const int64_t before = board.exchanges;
  const auto others_know = [&] {
    if (board.store_gone) return true;
    if (board.exchanges < before + 2) return false;
    if (board.place.rank != 0) return true;
    return std::all_of(board.peers.begin(), board.peers.end(), [&](const Board::Peer& peer) {
      return !peer.verdict.empty() || Clock::now() - peer.seen >= kMissedBeats * beat;
    });
  };
  board.changed.wait_for(lock, (kMissedBeats + 2) * beat, others_know);
  return verdict;
}

}  // namespace raffia::internal::train
