// What a call says when it refuses.
#ifndef RAFFIA_TESTS_SUPPORT_REFUSAL_H_
#define RAFFIA_TESTS_SUPPORT_REFUSAL_H_

#include <string>

namespace raffia::internal {

// The message of the Exception that call() throws, or "accepted".
template <typename Exception, typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_REFUSAL_H_
