// torch.ops.raffia: the schemas.
#include <torch/library.h>

TORCH_LIBRARY(raffia, library) { library.def("version() -> str"); }
