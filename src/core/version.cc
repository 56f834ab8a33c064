#include "raffia/version.h"

namespace raffia {

const char* version() { return RAFFIA_VERSION; }

}  // namespace raffia
