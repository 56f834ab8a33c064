#include "torch/train/distributed_launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/message.h"
#include "torch/train/descriptor.h"

namespace raffia::internal::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSignal = 128;  // plus its number: the exit code of a process that a signal ended, as in shells

[[noreturn]] void throw_system_error(const char* what) {
  throw IoError(fmt::format("starting local ranks: {}: {}", what, std::strerror(errno)));
}

// Signals arrive through a descriptor while this lives.
class SignalsAsReads {
 public:
  SignalsAsReads() {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) ::sigaddset(&set, signal);
    struct sigaction hangup = {};
    // Ignored under nohup, but a blocked signal would be read all the same.
    if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) ::sigaddset(&set, SIGHUP);
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_ = Descriptor(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (fd_.get() < 0) throw_system_error("signalfd");
  }
  ~SignalsAsReads() { restore(); }
  SignalsAsReads(const SignalsAsReads&) = delete;
  SignalsAsReads& operator=(const SignalsAsReads&) = delete;

  int fd() const { return fd_.get(); }
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
  Descriptor fd_;
};

struct Child {
  pid_t pid = -1;
  bool runs = true;
  Descriptor output = Descriptor();  // ranks above 0
  std::string line = {};             // of output, not yet ended
};

// What a rank sees. Runs in the child: only what is safe after a fork.
[[noreturn]] void become_rank(const LaunchOptions& options, std::vector<char*>& arguments, std::vector<char*>& environment,
                              int output, pid_t parent, const SignalsAsReads& signals) {
  ::setpgid(0, 0);  // a signal of the terminal comes once, from the parent
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  signals.restore();
  ::execve(options.command.front().c_str(), arguments.data(), environment.data());
  const char* message = "raffia: cannot run the program of a local rank\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message, std::strlen(message));
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_of(int rank, int port, const LaunchOptions& options) {
  const std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)},  {"WORLD_SIZE", std::to_string(options.ranks)},
      {"MASTER_ADDR", "127.0.0.1"},   {"MASTER_PORT", std::to_string(port)}, {"OMP_NUM_THREADS", std::to_string(options.threads)},
  };
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::none_of(own.begin(), own.end(), [&](const auto& pair) { return pair.first == name; })) result.emplace_back(text);
  }
  for (const auto& [name, value] : own) result.push_back(name + "=" + value);
  return result;
}

Child start(int rank, int port, const LaunchOptions& options, const SignalsAsReads& signals) {
  std::vector<std::string> texts = options.command;
  std::vector<char*> arguments = pointers(texts);
  std::vector<std::string> variables = environment_of(rank, port, options);
  std::vector<char*> environment = pointers(variables);
  Descriptor in, out;
  if (rank > 0) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_system_error("pipe");
    in = Descriptor(ends[0]);
    out = Descriptor(ends[1]);
    ::fcntl(in.get(), F_SETFL, O_NONBLOCK);
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw_system_error("fork");
  if (pid == 0) become_rank(options, arguments, environment, out.get(), parent, signals);
  return {.pid = pid, .output = std::move(in)};
}

// Passes whole lines on; the last one also without its end, once there is no more.
void pass_on(Child& child, int rank) {
  std::array<char, 4096> buffer;
  bool ended = false;
  for (;;) {
    const ssize_t count = ::read(child.output.get(), buffer.data(), buffer.size());
    if (count <= 0) {
      ended = count == 0;
      break;
    }
    child.line.append(buffer.data(), static_cast<size_t>(count));
  }
  if (ended && !child.line.empty() && child.line.back() != '\n') child.line += '\n';
  for (size_t end; (end = child.line.find('\n')) != std::string::npos; child.line.erase(0, end + 1)) {
    say("rank {}: {}", rank, std::string_view(child.line).substr(0, end));
  }
  if (ended) child.output.close();
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was terminated by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

class Ranks {
 public:
  explicit Ranks(const LaunchOptions& options) : options_(options) {
    const int port = free_local_port();
    try {
      for (int rank = 0; rank < options.ranks; ++rank) children_.push_back(start(rank, port, options, signals_));
    } catch (...) {
      send(SIGKILL);
      throw;
    }
  }

  int wait() {
    while (std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.runs || child.output.get() >= 0; })) {
      poll();
      collect();
      if (ending_ && Clock::now() >= deadline_) {
        send(killed_ ? SIGKILL : SIGTERM);
        killed_ = true;
        deadline_ = Clock::now() + std::chrono::seconds(5);
      }
    }
    return code_;
  }

 private:
  void poll() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      if (child.output.get() >= 0) fds.push_back({child.output.get(), POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), 500);
    signalfd_siginfo info;
    while (::read(signals_.fd(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
      if (info.ssi_signo == SIGCHLD) continue;
      passed_on_.insert(static_cast<int>(info.ssi_signo));
      send(static_cast<int>(info.ssi_signo));  // ranks need time to write a checkpoint
    }
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank].output.get() >= 0) pass_on(children_[rank], static_cast<int>(rank));
    }
  }

  void collect() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (!child.runs || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.runs = false;
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
      if (code_ == 0 && was_asked_to_end(status)) {
        code_ = kSignal + signal_of(status);
      } else if (code_ == 0) {
        say("raffia: rank {} (pid {}) {}", rank, child.pid, how_it_ended(status));
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      }
      if (!std::exchange(ending_, true)) deadline_ = Clock::now() + options_.grace;
    }
  }

  // Whether a rank ended as it should after a signal that was passed on to it.
  bool was_asked_to_end(int status) const { return passed_on_.contains(signal_of(status)); }

  static int signal_of(int status) { return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) - kSignal; }

  void send(int signal) const {
    for (const Child& child : children_) {
      if (child.runs) ::kill(child.pid, signal);
    }
  }

  const LaunchOptions& options_;
  SignalsAsReads signals_;
  std::vector<Child> children_;
  bool ending_ = false, killed_ = false;
  std::set<int> passed_on_;  // signals that went to all ranks
  Clock::time_point deadline_;
  int code_ = 0;
};

}  // namespace

int free_local_port() {
  const Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) throw_system_error("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(fd.get(), generic, size) != 0) throw_system_error("bind");
  if (::getsockname(fd.get(), generic, &size) != 0) throw_system_error("getsockname");
  return ::ntohs(address.sin_port);
}

int run_local_ranks(const LaunchOptions& options) {
  require(options.ranks >= 1, "run_local_ranks: ranks is {}, expected 1 or more", options.ranks);
  require(!options.command.empty(), "run_local_ranks: command is empty, expected a program");
  return Ranks(options).wait();
}

}  // namespace raffia::internal::train
