#include "io/tokenizers/tokenizer_sp_module.h"

void raffia_sp_module(raffia::internal::SpModule* module) {
  *module = {&raffia::internal::train_sp_tokenizer, &raffia::internal::sp_tokenizer_from};
}
