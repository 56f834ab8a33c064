// The built command on a terminal of its own, at which a test types.
#ifndef RAFFIA_TESTS_CLI_TERMINAL_H_
#define RAFFIA_TESTS_CLI_TERMINAL_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/paths.h"

// No wait outlasts kPatience in all, and whatever still runs then is killed: a test fails, it does not hang.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    const std::string command = raffia::internal::raffia_command();
    arguments.insert(arguments.begin(), command);
    std::vector<char*> words;
    for (std::string& word : arguments) words.push_back(word.data());
    words.push_back(nullptr);
    child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (child_ == 0) {
      setenv("TERM", "dumb", 1);
      setenv("HOME", "/nonexistent", 1);  // no ~/.editrc
      execv(command.c_str(), words.data());
      _exit(127);
    }
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const { EXPECT_EQ(write(terminal_, keys.data(), keys.size()), std::ssize(keys)); }
  void send(int signal) const { EXPECT_EQ(kill(child_, signal), 0); }

  // Reads until `text` appears after what was awaited before; false: the command ended, or patience did.
  bool await(const std::string& text) {
    size_t found = std::string::npos;
    while ((found = screen_.find(text, seen_)) == std::string::npos)
      if (read_some() != Came::bytes) return false;
    seen_ = found + text.size();
    return true;
  }

  // Reads to the end. -1: ended by a signal, or not at all.
  int exit_code() {
    Came came = Came::bytes;
    while (came == Came::bytes) came = read_some();
    if (came == Came::nothing) return -1;
    int status = 0;
    waitpid(child_, &status, 0);  // it has closed its terminal: it is about to end
    child_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string& screen() const { return screen_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Came : uint8_t { bytes, end, nothing };
  static constexpr std::chrono::seconds kPatience{60};  // of a machine that is busy with other things

  Came read_some() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
    pollfd ready{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) return Came::nothing;
    char bytes[4096];
    const ssize_t n = read(terminal_, bytes, sizeof bytes);
    if (n <= 0) return Came::end;
    screen_.append(bytes, static_cast<size_t>(n));
    return Came::bytes;
  }

  const Clock::time_point deadline_ = Clock::now() + kPatience;
  int terminal_ = -1;
  pid_t child_ = -1;
  std::string screen_;
  size_t seen_ = 0;
};

#endif  // RAFFIA_TESTS_CLI_TERMINAL_H_
