#include "torch/train/distributed.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/check.h"
#include "torch/train/distributed_liveness.h"
#include "torch/train/distributed_store.h"

namespace raffia::internal::train {
namespace {

using Variables = std::function<std::string(const char*)>;

std::optional<int> number(const Variables& variable, const char* name, int min, int max) {
  const std::string text = variable(name);
  if (text.empty()) return {};
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= min && value <= max,
          "environment variable {} is \"{}\", expected an integer from {} to {}", name, text, min, max);
  return value;
}

std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::shared_ptr<::gloo::transport::Device> device_for(const Place& place) {
  if (const std::string interface = environment_variable("GLOO_SOCKET_IFNAME"); !interface.empty()) {
    return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
  }
  // The name of a machine need not resolve to an address that it has; that of the loopback does.
  if (is_loopback(place.address)) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

// torchrun may provide the store itself; every attempt of a job then has its own part of it.
bool launcher_has_store() { return environment_variable("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

c10::intrusive_ptr<c10d::Store> open_store(const Place& place, std::chrono::milliseconds timeout) {
  if (!launcher_has_store()) return connect_store(place.address, place.port, timeout);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::PrefixStore>("raffia/attempt/" + environment_variable("TORCHELASTIC_RESTART_COUNT"),
                                                c10::make_intrusive<c10d::TCPStore>(place.address, options));
}

// The messages of c10d end in a list of its source locations.
std::string first_line(const char* what) {
  const std::string_view text(what);
  return std::string(text.substr(0, text.find('\n')));
}

int64_t bytes_of(const Tensor& tensor) { return tensor.numel() * tensor.element_size(); }

void require_whole(const Tensor& tensor, const char* function) {
  require(tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu(), "{}: expected a contiguous tensor on the CPU",
          function);
}

}  // namespace

Place place_from(const Variables& variable) {
  constexpr int kMaxRanks = 1 << 16;
  const auto first_of = [&](std::initializer_list<const char*> names, int min) {
    std::optional<int> found;
    for (const char* name : names) {
      if (!found) found = number(variable, name, min, kMaxRanks);
    }
    return found;
  };
  const std::optional<int> size = first_of({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"}, 1);
  const std::optional<int> rank = first_of({"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}, 0);
  if (!size || *size == 1) return {};
  require(rank.has_value(), "WORLD_SIZE is {} but no environment variable sets the rank, expected RANK", *size);
  require(*rank < *size, "rank is {}, expected less than the number of ranks, {}", *rank, *size);
  Place place{.rank = *rank, .size = *size, .address = variable("MASTER_ADDR"), .port = 0};
  require(!place.address.empty(), "WORLD_SIZE is {} but MASTER_ADDR is not set, expected the address of rank 0", *size);
  const std::optional<int> port = number(variable, "MASTER_PORT", 1, 65535);
  require(port.has_value(), "WORLD_SIZE is {} but MASTER_PORT is not set, expected a free port of rank 0", *size);
  place.port = *port;
  return place;
}

Place place_from_environment() { return place_from(environment_variable); }

std::string_view to_string(Collective kind) {
  switch (kind) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::barrier:
      return "barrier";
  }
  return "collective";
}

// Collectives are matched by the order in which ranks start them. Those that go on during a backward pass have connections of
// their own, so that the others need not be ordered with them.
struct Group::Channels {
  std::unique_ptr<StoreServer> server;  // of rank 0
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> now, background;
};

struct Group::Pending::Work {
  Group* group = nullptr;
  Tensor tensor;
  c10::intrusive_ptr<c10d::Work> work;
};

Group::Group() = default;

Group::Group(const Place& place, const GroupOptions& options) : place_(place), options_(options) {
  if (alone()) return;
  require(place.rank >= 0 && place.rank < place.size, "Group: rank is {} of {}", place.rank, place.size);
  channels_ = std::make_unique<Channels>();
  try {
    if (place.rank == 0 && !launcher_has_store()) {
      channels_->server = std::make_unique<StoreServer>(place.address, place.port, place.size);
      if (channels_->server->listens_everywhere() && options.note) {
        options.note(fmt::format("warning: {} is not an address of this machine: port {} listens on all of its interfaces",
                                 place.address, place.port));
      }
    }
    channels_->store = open_store(place, options.timeout);
    liveness_ = std::make_unique<Liveness>(open_store(place, options.timeout), place, options);
    const auto connect = [&](const char* name) {
      auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
      gloo->devices = {device_for(place)};
      gloo->threads = 1;
      return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, channels_->store),
                                                         place.rank, place.size, gloo);
    };
    channels_->now = connect("now");
    channels_->background = connect("background");
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    throw GroupError(fmt::format("rank {} of {}: {} {}:{} failed: {}", place.rank, place.size,
                                 place.rank == 0 ? "waiting for the other ranks at" : "connecting to rank 0 at", place.address,
                                 place.port, first_line(error.what())));
  }
}

Group::~Group() {
  // Collectives that are still under way end first: the beats tell the others that this rank is still there.
  if (channels_ && abandoned_) {
    // Their destructors would wait for a rank that does not answer. The process is about to end.
    channels_->background.release();
    channels_->now.release();
  } else if (channels_) {
    channels_->background.reset();
    channels_->now.reset();
  }
  liveness_.reset();
}

std::string Group::failure(std::string_view what, const std::string& reason) {
  const std::string culprit = liveness_->culprit();
  std::string message =
      culprit.empty() ? fmt::format("rank {}: {} failed although all ranks answer ({})", rank(), what, reason) : culprit;
  if (step_ >= 0) {
    message += fmt::format(": stopped at step {}; ", step_);
    message += checkpoint_ >= 0 ? fmt::format("the last checkpoint is step {}", checkpoint_) : "there is no checkpoint yet";
  }
  return message;
}

void Group::fail(std::string_view what, const std::string& reason) { throw GroupError(failure(what, reason)); }

// Gloo notices a connection that ends, but not a rank that is stopped or whose machine is gone.
void Group::await_work(Collective kind, c10d::Work& work) {
  constexpr std::chrono::milliseconds kPoll(250);  // a wait that ends without the work costs an exception
  const auto ended_within = [&](std::chrono::milliseconds time) {
    if (!work.isCompleted()) {
      try {
        work.wait(time);
      } catch (const std::exception&) {  // it did not end in time, or it failed: then the next wait() throws again
      }
    }
    return work.isCompleted();
  };
  while (!ended_within(kPoll)) {
    const int signal = own_signal();
    liveness_->asked_to_end(signal);
    // A rank that misses many heartbeats may only be slow. If it does not answer and this one is to end, it is not waited for.
    if (!liveness_->suspects(signal != 0 ? kMissedBeats : kMissedBeatsInCollective)) continue;
    // The last collective of a rank that has left may still be arriving.
    if (!ended_within(2 * options_.heartbeat)) abandon(kind);
  }
  try {
    work.wait();
  } catch (const std::exception& error) {
    fail(to_string(kind), first_line(error.what()));
  }
}

void Group::abandon(Collective kind) {
  abandoned_ = true;
  const std::string message = failure(to_string(kind), "it has not ended");
  if (const int signal = own_signal(); signal != 0) throw GroupInterrupted(signal, "interrupted; " + message);
  throw GroupError(message);
}

int Group::signal() {
  const int own = own_signal();
  return own != 0 || alone() ? own : liveness_->signal_of_others();
}

void Group::count(Collective kind, int64_t bytes) {
  Traffic& traffic = traffic_[static_cast<size_t>(kind)];
  ++traffic.calls;
  traffic.bytes += bytes;
}

template <typename Start>
void Group::run(Collective kind, int64_t bytes, const Start& start) {
  if (alone()) return;
  count(kind, bytes);
  liveness_->entered_collective();
  c10::intrusive_ptr<c10d::Work> work;
  try {
    work = start();
  } catch (const std::exception& error) {
    fail(to_string(kind), first_line(error.what()));
  }
  await_work(kind, *work);
}

void Group::all_reduce(const Tensor& tensor) {
  require_whole(tensor, "Group::all_reduce");
  run(Collective::all_reduce, bytes_of(tensor), [&] {
    std::vector<Tensor> tensors{tensor};
    return channels_->now->allreduce(tensors);
  });
}

Tensor Group::all_gather(const Tensor& tensor) {
  const Tensor own = tensor.detach().contiguous();
  require_whole(own, "Group::all_gather");
  if (alone()) return own.unsqueeze(0);
  std::vector<int64_t> shape{size()};
  shape.insert(shape.end(), own.sizes().begin(), own.sizes().end());
  const Tensor all = at::empty(shape, own.options());
  run(Collective::all_gather, bytes_of(own), [&] {
    std::vector<std::vector<Tensor>> outputs{all.unbind(0)};
    std::vector<Tensor> inputs{own};
    return channels_->now->allgather(outputs, inputs);
  });
  return all;
}

void Group::broadcast(const Tensor& tensor, int from) {
  require_whole(tensor, "Group::broadcast");
  run(Collective::broadcast, rank() == from ? bytes_of(tensor) : 0, [&] {
    std::vector<Tensor> tensors{tensor};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return channels_->now->broadcast(tensors, options);
  });
}

void Group::barrier() {
  run(Collective::barrier, 0, [&] { return channels_->now->barrier(); });
}

void Group::await(const std::string& key) {
  const auto end = std::chrono::steady_clock::now() + options_.timeout;
  while (!channels_->store->check({key})) {
    if (liveness_->suspects(kMissedBeats)) fail("waiting for all ranks", key);
    if (std::chrono::steady_clock::now() >= end) fail("waiting for all ranks", fmt::format("{} is missing", key));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::vector<std::string> Group::share(const std::string& name, const std::string& own) {
  if (alone()) return {own};
  const std::string prefix = fmt::format("share/{}/{}/", shares_++, name);
  const auto key = [&](std::string_view what, int of_rank) { return fmt::format("{}{}/{}", prefix, what, of_rank); };
  std::vector<std::string> all;
  try {
    channels_->store->set(key("said", rank()), {own.begin(), own.end()});
    for (int of_rank = 0; of_rank < size(); ++of_rank) {
      await(key("said", of_rank));
      const std::vector<uint8_t> said = channels_->store->get(key("said", of_rank));
      all.emplace_back(said.begin(), said.end());
    }
    channels_->store->set(key("read", rank()), {});
    for (int of_rank = 0; first() && of_rank < size(); ++of_rank) await(key("read", of_rank));
  } catch (const GroupError&) {
    throw;
  } catch (const std::exception& error) {
    fail("waiting for all ranks", first_line(error.what()));
  }
  return all;
}

Group::Pending Group::start_all_reduce(const Tensor& tensor) {
  require_whole(tensor, "Group::start_all_reduce");
  Pending pending;
  if (alone()) return pending;
  count(Collective::all_reduce, bytes_of(tensor));
  liveness_->entered_collective();
  pending.work_ = std::make_shared<Pending::Work>(Pending::Work{this, tensor, {}});
  try {
    std::vector<Tensor> tensors{tensor};
    pending.work_->work = channels_->background->allreduce(tensors);
  } catch (const std::exception& error) {
    fail(to_string(Collective::all_reduce), first_line(error.what()));
  }
  return pending;
}

void Group::Pending::wait() {
  if (!work_) return;
  const std::shared_ptr<Work> work = std::move(work_);
  work->group->await_work(Collective::all_reduce, *work->work);
}

void Group::at_step(int64_t step, int64_t checkpoint) {
  step_ = step;
  checkpoint_ = checkpoint;
}

}  // namespace raffia::internal::train
