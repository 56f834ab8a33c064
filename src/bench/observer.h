// Is told how far a measurement is: the caller shows it, or not.
#ifndef RAFFIA_BENCH_OBSERVER_H_
#define RAFFIA_BENCH_OBSERVER_H_

#include <string>

namespace raffia::internal::bench {

class Observer {
 public:
  virtual ~Observer() = default;
  virtual void start(double total) = 0;               // all the work, in any unit that is roughly proportional to time
  virtual void begin(const std::string& what) = 0;    // starts the next part
  virtual void advance(double work) = 0;              // so much of the total is done
  virtual void note(const std::string& message) = 0;  // worth knowing beside the results
};

}  // namespace raffia::internal::bench

#endif  // RAFFIA_BENCH_OBSERVER_H_
