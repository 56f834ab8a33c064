// How far a long command is, on stderr: a bar with the time left on a terminal, plain lines elsewhere.
#ifndef RAFFIA_CLI_PROGRESS_H_
#define RAFFIA_CLI_PROGRESS_H_

#include <chrono>
#include <cstddef>
#include <string>

namespace raffia::cli {

inline constexpr std::chrono::seconds kQuietAtFirst{2};  // where most runs are over before anybody wonders

class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // `total`: work in any unit that is roughly proportional to time; 0: unknown. Nothing is shown in the time `quiet`.
  explicit Progress(double total, Clock::duration quiet = {});
  ~Progress();  // clears the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(const std::string& what);     // the part that follows
  void describe(const std::string& what);  // the same part in other words: shown when it is time to
  void advance(double work);
  void skip(double work);                 // of the total, work that was done before and took no time now
  void note(const std::string& message);  // a line that stays

 private:
  void show();
  void clear();
  std::string time_left() const;

  const bool terminal_;
  const double total_;
  const Clock::duration quiet_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_ = {};
  bool on_screen_ = false;
  double done_ = 0, skipped_ = 0;
  std::string what_;
};

// The line of a bar in fewer than `columns` columns, so that no terminal wraps it: bar, share, `what`, `left`. Where room is
// short the bar shrinks first, then `what` loses parts (which ", " separates) from its end, then the bar goes.
std::string bar_line(double fraction, const std::string& what, const std::string& left, size_t columns);

// Columns of the terminal behind stderr: as it says itself, else as the environment variable COLUMNS says, else 80.
size_t terminal_columns();

}  // namespace raffia::cli

#endif  // RAFFIA_CLI_PROGRESS_H_
