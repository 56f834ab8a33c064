// Where tests find the built command and the data of this checkout. The paths are compiled into one small source, so that the
// objects of the tests themselves do not depend on where the checkout lies, and ccache finds them again.
#ifndef RAFFIA_TESTS_SUPPORT_PATHS_H_
#define RAFFIA_TESTS_SUPPORT_PATHS_H_

#include <filesystem>
#include <string>

namespace raffia::internal {

std::string raffia_command();              // the built `raffia`; empty where commands are not built
std::filesystem::path golden_directory();  // tests/golden

}  // namespace raffia::internal

#endif  // RAFFIA_TESTS_SUPPORT_PATHS_H_
