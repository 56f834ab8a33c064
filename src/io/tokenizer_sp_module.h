// SentencePiece in a module of its own. Its library exports a protobuf that is not the one LibTorch uses: in one process, either
// would call into the other. The module is loaded so that its symbols stay its own.
#ifndef RAFFIA_IO_TOKENIZER_SP_MODULE_H_
#define RAFFIA_IO_TOKENIZER_SP_MODULE_H_

#include "io/tokenizer_kinds.h"

namespace raffia {

struct SpModule {
  decltype(&train_sp_tokenizer) train;
  decltype(&sp_tokenizer_from) load;
};

}  // namespace raffia

extern "C" void raffia_sp_module(raffia::SpModule* module);  // what the module exports

#endif  // RAFFIA_IO_TOKENIZER_SP_MODULE_H_
