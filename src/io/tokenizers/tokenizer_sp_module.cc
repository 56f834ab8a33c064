#include "io/tokenizers/tokenizer_sp_module.h"

void raffia_sp_module(raffia::SpModule* module) { *module = {&raffia::train_sp_tokenizer, &raffia::sp_tokenizer_from}; }
