// SentencePiece as a separately loaded module. Its library exports a different protobuf than LibTorch uses: linked into one
// process, the two would call each other. The module is loaded with local symbols.
#ifndef RAFFIA_IO_TOKENIZERS_TOKENIZER_SP_MODULE_H_
#define RAFFIA_IO_TOKENIZERS_TOKENIZER_SP_MODULE_H_

#include "io/tokenizers/tokenizer_kinds.h"
#include "raffia/api.h"

namespace raffia::internal {

struct SpModule {
  decltype(&train_sp_tokenizer) train;
  decltype(&sp_tokenizer_from) load;
};

}  // namespace raffia::internal

extern "C" RAFFIA_API void raffia_sp_module(raffia::internal::SpModule* module);  // what the module exports

#endif  // RAFFIA_IO_TOKENIZERS_TOKENIZER_SP_MODULE_H_
