// Checkpoints of llama2.c (the legacy layout, which has no version): 7 int32 of sizes, then all weights in fp32.
#ifndef RAFFIA_IO_IMPORTS_LLAMA2C_H_
#define RAFFIA_IO_IMPORTS_LLAMA2C_H_

#include "io/formats/byte_source.h"
#include "io/imports/imported_model.h"

namespace raffia::internal {

// Checks sizes against the length of the file before anything is read. `source` must outlive the result. Throws FormatError.
ImportedModel llama2c_model(const ByteSource& source);

}  // namespace raffia::internal

#endif  // RAFFIA_IO_IMPORTS_LLAMA2C_H_
