// A request is an operation, two sizes and two byte strings, the name and the value; an answer is a mark, a size and a byte
// string. Connections begin with kGreeting, so that others are closed at once. All ranks run the same program on the same
// kind of machine: numbers are sent in native byte order.
#include "torch/train/distributed_store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "raffia/error.h"
#include "torch/train/descriptor.h"

namespace raffia::internal::train {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::string_view kGreeting = "raffia 1";
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxValueBytes = size_t{16} << 20;
constexpr size_t kMaxUnsentBytes = size_t{1} << 20;  // of answers to one client: above it, its next requests wait
// What the map needs for an entry besides the bytes of its strings.
constexpr size_t kEntryBytes = sizeof(std::pair<const std::string, std::string>) + 6 * sizeof(void*);

enum class Operation : uint32_t { set, get, has, add, remove, count, compare_set };
enum class Answer : uint32_t { found, missing };

struct RequestHead {
  Operation operation;
  uint32_t name_size;
  uint32_t value_size;
};

struct AnswerHead {
  Answer answer;
  uint32_t size;
};

template <typename Head>
std::string_view bytes_of(const Head& head) {
  return {reinterpret_cast<const char*>(&head), sizeof(head)};
}

std::string failure(std::string_view what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

struct Resolved {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }

  bool is_loopback() const {
    if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
    return ::ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == 127;
  }
};

// Null: every interface.
std::vector<Resolved> resolve(const char* address, int port) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (address == nullptr ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  const int code = ::getaddrinfo(address, std::to_string(port).c_str(), &hints, &list);
  if (code != 0) throw IoError(fmt::format("the address cannot be resolved: {}", ::gai_strerror(code)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, ::freeaddrinfo);
  std::vector<Resolved> all;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Resolved resolved{.size = one->ai_addrlen};
    std::memcpy(&resolved.storage, one->ai_addr, one->ai_addrlen);
    all.push_back(resolved);
  }
  return all;
}

// Listens at all of them that are possible; if none is, errno has the reason.
std::vector<Descriptor> listen_at(const std::vector<Resolved>& addresses) {
  std::vector<Descriptor> sockets;
  int error = 0;
  for (const Resolved& address : addresses) {
    Descriptor fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    constexpr int kOn = 1;
    if (fd.get() >= 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
    if (fd.get() >= 0 && address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &kOn, sizeof(kOn));
    if (fd.get() < 0 || ::bind(fd.get(), address.generic(), address.size) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
      error = errno;
      continue;
    }
    sockets.push_back(std::move(fd));
  }
  errno = error;
  return sockets;
}

// The stored values, and the answers to requests.
class Values {
 public:
  // False: the request is invalid, or the store is full.
  bool answer(Operation operation, const std::string& name, std::string value, std::string& out) {
    const auto found = values_.find(name);
    const bool is_there = found != values_.end();
    switch (operation) {
      case Operation::set:
        return put(name, std::move(value)) && reply(out, Answer::found, {});
      case Operation::get:
        return reply(out, is_there ? Answer::found : Answer::missing, is_there ? found->second : std::string());
      case Operation::has:
        return reply(out, is_there ? Answer::found : Answer::missing, {});
      case Operation::add: {
        int64_t sum = number(value);
        if (is_there && __builtin_add_overflow(sum, number(found->second), &sum)) return false;
        return put(name, std::to_string(sum)) && reply(out, Answer::found, std::to_string(sum));
      }
      case Operation::remove:
        if (is_there) {
          bytes_ -= entry_bytes(name, found->second);
          values_.erase(found);
        }
        return reply(out, is_there ? Answer::found : Answer::missing, {});
      case Operation::count:
        return reply(out, Answer::found, std::to_string(values_.size()));
      case Operation::compare_set: {
        uint32_t expected_size = 0;
        if (value.size() < sizeof(expected_size)) return false;
        std::memcpy(&expected_size, value.data(), sizeof(expected_size));
        if (expected_size > value.size() - sizeof(expected_size)) return false;
        const std::string expected = value.substr(sizeof(expected_size), expected_size);
        if ((is_there ? found->second : std::string()) != expected)
          return reply(out, Answer::found, is_there ? found->second : expected);
        std::string wanted = value.substr(sizeof(expected_size) + expected_size);
        return put(name, wanted) && reply(out, Answer::found, wanted);
      }
    }
    return false;
  }

 private:
  static int64_t number(const std::string& text) {
    int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }

  static bool reply(std::string& out, Answer answer, const std::string& value) {
    out += bytes_of(AnswerHead{answer, static_cast<uint32_t>(value.size())});
    out += value;
    return true;
  }

  static size_t entry_bytes(const std::string& name, const std::string& value) {
    return kEntryBytes + name.size() + value.size();
  }

  bool put(const std::string& name, std::string value) {
    const auto found = values_.find(name);
    const size_t before = found == values_.end() ? 0 : entry_bytes(name, found->second);
    const size_t after = entry_bytes(name, value);
    if (bytes_ - before + after > kStoreBytes) return false;
    values_[name] = std::move(value);
    bytes_ += after - before;
    return true;
  }

  std::map<std::string, std::string> values_;
  size_t bytes_ = 0;
};

struct Connection {
  Descriptor socket;
  std::string in = {}, out = {};
  bool greeted = false;

  // False: the connection has to end.
  bool serve(Values& values) {
    try {
      return out.empty() ? receive(values) : send(values);
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

 private:
  // False: the connection ended, or it does not follow the protocol.
  bool receive(Values& values) {
    std::array<char, 1 << 16> block;
    const ssize_t count = ::recv(socket.get(), block.data(), block.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    if (count == 0) return false;
    in.append(block.data(), static_cast<size_t>(count));
    if (!greeted) {
      if (in.size() < kGreeting.size()) return kGreeting.starts_with(in);
      if (!in.starts_with(kGreeting)) return false;
      in.erase(0, kGreeting.size());
      greeted = true;
    }
    return answer(values);
  }

  bool send(Values& values) {
    const ssize_t count = ::send(socket.get(), out.data(), out.size(), MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    out.erase(0, static_cast<size_t>(count));
    return !out.empty() || answer(values);
  }

  // Requests that have arrived, as long as few bytes of answers are unsent: a short request may have a long answer.
  bool answer(Values& values) {
    size_t done = 0;
    while (in.size() - done >= sizeof(RequestHead) && out.size() < kMaxUnsentBytes) {
      RequestHead head;
      std::memcpy(&head, in.data() + done, sizeof(head));
      if (head.operation > Operation::compare_set || head.name_size > kMaxNameBytes || head.value_size > kMaxValueBytes)
        return false;
      const size_t size = sizeof(head) + head.name_size + head.value_size;
      if (in.size() - done < size) break;
      if (!values.answer(head.operation, in.substr(done + sizeof(head), head.name_size),
                         in.substr(done + sizeof(head) + head.name_size, head.value_size), out))
        return false;
      done += size;
    }
    in.erase(0, done);
    return true;
  }
};

// A rank has two: one for its exchanges, one for its heartbeats. Some more, for ranks that connect again.
size_t max_connections(int ranks) { return 16 + 4 * static_cast<size_t>(ranks); }

}  // namespace

bool is_loopback(const std::string& address) { return address == "localhost" || address == "::1" || address.starts_with("127."); }

class StoreServer::Loop {
 public:
  Loop(const std::string& address, int port, int ranks) : max_connections_(max_connections(ranks)) {
    const std::vector<Resolved> own = resolve(address.c_str(), port);
    const bool only_loopback = std::all_of(own.begin(), own.end(), [](const Resolved& one) { return one.is_loopback(); });
    if (is_loopback(address) || !only_loopback) listeners_ = listen_at(own);
    const bool is_elsewhere = listeners_.empty() && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT);
    if (listeners_.empty() && !is_loopback(address) && (only_loopback || is_elsewhere)) {
      listeners_ = listen_at(resolve(nullptr, port));
      everywhere_ = true;
    }
    if (listeners_.empty()) throw IoError(failure(fmt::format("cannot listen at {}:{}", address, port)));
    ends_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (ends_.get() < 0) throw IoError(failure("eventfd"));
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    constexpr uint64_t kOne = 1;
    [[maybe_unused]] const ssize_t written = ::write(ends_.get(), &kOne, sizeof(kOne));
    thread_.join();
  }

  bool everywhere() const { return everywhere_; }

 private:
  void run() {
    for (std::vector<pollfd> fds;;) {
      fds.assign(1, {ends_.get(), POLLIN, 0});
      for (const Descriptor& listener : listeners_) fds.push_back({listener.get(), POLLIN, 0});
      // Nothing more is read from a connection that does not read its answers, so that its queue stays small.
      for (const Connection& one : connections_)
        fds.push_back({one.socket.get(), static_cast<short>(one.out.empty() ? POLLIN : POLLOUT), 0});
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents != 0) return;
      const size_t first = 1 + listeners_.size();
      std::vector<Connection> kept;
      for (size_t i = 0; i < connections_.size(); ++i) {
        Connection& one = connections_[i];
        const bool is_ready = fds[first + i].revents != 0;
        if (!is_ready || one.serve(values_)) kept.push_back(std::move(one));
      }
      connections_ = std::move(kept);
      for (size_t i = 0; i < listeners_.size(); ++i) {
        if (fds[1 + i].revents != 0) accept(listeners_[i].get());
      }
    }
  }

  void accept(int listener) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(10ms);  // the listener stays ready: do not spin
      return;
    }
    if (connections_.size() >= max_connections_) {
      // A rank greets as soon as it is connected: the oldest that has not is a stranger.
      const auto stranger =
          std::find_if(connections_.begin(), connections_.end(), [](const Connection& one) { return !one.greeted; });
      if (stranger == connections_.end()) return;
      connections_.erase(stranger);
    }
    constexpr int kOn = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
    connections_.push_back({.socket = std::move(socket)});
  }

  const size_t max_connections_;
  std::vector<Descriptor> listeners_;
  bool everywhere_ = false;
  Descriptor ends_;  // readable: the loop ends
  std::vector<Connection> connections_;
  Values values_;
  std::thread thread_;
};

StoreServer::StoreServer(const std::string& address, int port, int ranks) : loop_(std::make_unique<Loop>(address, port, ranks)) {}
StoreServer::~StoreServer() = default;
bool StoreServer::listens_everywhere() const { return loop_->everywhere(); }

namespace {

class StoreClient : public c10d::Store {
 public:
  StoreClient(const std::string& address, int port, std::chrono::milliseconds timeout) : c10d::Store(timeout) {
    const Clock::time_point end = Clock::now() + timeout;
    std::string reason;
    while (!connect(address, port, reason)) {
      if (Clock::now() >= end) throw IoError(reason);
      std::this_thread::sleep_for(50ms);
    }
    limit(timeout);
    send(kGreeting);
  }

  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    call(Operation::set, key, {value.begin(), value.end()});
  }

  std::vector<uint8_t> get(const std::string& key) override {
    const Clock::time_point end = Clock::now() + timeout_;
    for (std::chrono::milliseconds pause = 1ms;; pause = std::min<std::chrono::milliseconds>(2 * pause, 20ms)) {
      if (const auto [answer, value] = call(Operation::get, key); answer == Answer::found) return {value.begin(), value.end()};
      if (Clock::now() >= end) throw IoError(fmt::format("the store got no value for {} in time", key));
      std::this_thread::sleep_for(pause);
    }
  }

  int64_t add(const std::string& key, int64_t value) override {
    return std::stoll(call(Operation::add, key, std::to_string(value)).second);
  }

  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override {
    const auto size = static_cast<uint32_t>(expected.size());
    std::string both(bytes_of(size));
    both.append(expected.begin(), expected.end()).append(wanted.begin(), wanted.end());
    const std::string value = call(Operation::compare_set, key, both).second;
    return {value.begin(), value.end()};
  }

  bool deleteKey(const std::string& key) override { return call(Operation::remove, key).first == Answer::found; }
  int64_t getNumKeys() override { return std::stoll(call(Operation::count, "").second); }

  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(),
                       [this](const std::string& key) { return call(Operation::has, key).first == Answer::found; });
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    const Clock::time_point end = Clock::now() + timeout;
    for (std::chrono::milliseconds pause = 1ms; !check(keys); pause = std::min<std::chrono::milliseconds>(2 * pause, 20ms)) {
      if (Clock::now() >= end) throw IoError(fmt::format("the store got no value for {} in time", keys.front()));
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  bool connect(const std::string& address, int port, std::string& reason) {
    try {
      for (const Resolved& one : resolve(address.c_str(), port)) {
        Descriptor socket(::socket(one.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (socket.get() < 0) {
          reason = failure("socket");
          continue;
        }
        socket_ = std::move(socket);
        limit(10s);  // a machine that does not answer is also tried again
        if (::connect(socket_.get(), one.generic(), one.size) == 0) return true;
        reason = failure("cannot connect");
      }
    } catch (const IoError& error) {  // the name may be resolvable later
      reason = error.what();
    }
    return false;
  }

  void limit(std::chrono::milliseconds time) const {
    timeval limit = {};
    limit.tv_sec = time.count() / 1000;
    limit.tv_usec = time.count() % 1000 * 1000;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    constexpr int kOn = 1;
    ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
  }

  std::pair<Answer, std::string> call(Operation operation, const std::string& name, const std::string& value = {}) {
    if (name.size() > kMaxNameBytes || value.size() > kMaxValueBytes)
      throw IoError(
          fmt::format("the store does not accept a value of {} bytes with a name of {} bytes", value.size(), name.size()));
    const std::lock_guard lock(mutex_);
    const RequestHead head{operation, static_cast<uint32_t>(name.size()), static_cast<uint32_t>(value.size())};
    send(std::string(bytes_of(head)) + name + value);
    AnswerHead answer;
    const std::string bytes = receive(sizeof(answer));
    std::memcpy(&answer, bytes.data(), sizeof(answer));
    if (answer.size > kMaxValueBytes) throw IoError("the store sent an invalid answer");
    return {answer.answer, receive(answer.size)};
  }

  void send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw IoError(failure("sending to the store"));
      bytes.remove_prefix(static_cast<size_t>(count));
    }
  }

  std::string receive(size_t size) const {
    std::string bytes(size, '\0');
    for (size_t done = 0; done < size;) {
      const ssize_t count = ::recv(socket_.get(), bytes.data() + done, size - done, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw IoError(failure("waiting for the store"));
      if (count == 0) throw IoError("the store ended the connection");
      done += static_cast<size_t>(count);
    }
    return bytes;
  }

  Descriptor socket_;
  std::mutex mutex_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const std::string& address, int port, std::chrono::milliseconds timeout) {
  return c10::make_intrusive<StoreClient>(address, port, timeout);
}

}  // namespace raffia::internal::train
