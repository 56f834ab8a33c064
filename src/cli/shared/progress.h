// Progress of a long command on stderr: a bar with the time left on a terminal, plain lines elsewhere.
#ifndef RAFFIA_CLI_SHARED_PROGRESS_H_
#define RAFFIA_CLI_SHARED_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <string>

#include "bench/observer.h"

namespace raffia::internal::cli {

inline constexpr std::chrono::seconds kQuietAtFirst{2};  // most runs end before that

class Progress : public bench::Observer {
 public:
  using Clock = std::chrono::steady_clock;

  // `total`: work in any unit that is roughly proportional to time; 0: unknown. Nothing is shown for the duration `quiet`.
  explicit Progress(double total = 0, Clock::duration quiet = {});
  ~Progress() override;  // clears the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start(double total) override { total_ = total; }  // where it was unknown so far
  void begin(const std::string& what) override;          // starts the next part
  void describe(const std::string& what);                // changes the text of the current part at the next update
  void advance(double work) override;
  void skip(double work);                          // part of the total that was done before and took no time now
  void note(const std::string& message) override;  // a line that stays

 private:
  void show();
  void clear();
  std::string time_left() const;

  const bool terminal_;
  double total_;
  const Clock::duration quiet_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = {};
  bool on_screen_ = false;
  double done_ = 0, skipped_ = 0;
  std::string what_;
};

// What measure(progress) returns; the bar is gone by then.
template <typename Measure>
auto with_progress(const Measure& measure) {
  Progress progress;
  return measure(progress);
}

// The line of a bar in fewer than `columns` columns, so that no terminal wraps it: bar, percentage, `what`, `left`. If there is
// not enough room, first the bar shrinks, then `what` loses parts (separated by ", ") from its end, then the bar is omitted.
std::string bar_line(double fraction, const std::string& what, const std::string& left, size_t columns);

// Columns of the terminal at stderr: its own value, else the environment variable COLUMNS, else 80.
size_t terminal_columns();

}  // namespace raffia::internal::cli

#endif  // RAFFIA_CLI_SHARED_PROGRESS_H_
