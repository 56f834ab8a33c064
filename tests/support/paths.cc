#include "support/paths.h"

namespace raffia::internal {

std::string raffia_command() { return RAFFIA_COMMAND; }

std::filesystem::path golden_directory() { return std::filesystem::path(RAFFIA_SOURCE_DIR) / "tests/golden"; }

}  // namespace raffia::internal
