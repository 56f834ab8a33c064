#include "core/trace.h"

#include <fmt/format.h>

#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "core/message.h"
#include "raffia/isa.h"

namespace raffia::internal {

bool Trace::enabled() {
  static const bool asked = [] {
    const char* value = std::getenv("RAFFIA_VERBOSE");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return asked;
}

void Trace::print() const noexcept {
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin_;
  try {
    const std::string chunk = chunk_ > 0 ? fmt::format(" chunk {}", chunk_) : "";
    const std::string line = fmt::format("raffia: {} {}{} isa {}{} {:.4g} ms\n", op_, argument_, to_string(shape_.data(), rank_),
                                         name_of(active_isa()), chunk, elapsed.count());
    write_message(line);
  } catch (const std::exception&) {
    return;  // a failure to print diagnostics must not fail the op
  }
}

}  // namespace raffia::internal
