// torch.ops.raffia. The other schemas are in the files of their ops.
#include <torch/library.h>

#include "raffia/version.h"

TORCH_LIBRARY(raffia, library) {
  library.def("version() -> str", [] { return std::string(RAFFIA_VERSION); });
}
