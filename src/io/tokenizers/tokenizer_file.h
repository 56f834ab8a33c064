// The file of a model directory that says which tokenizer the model has (docs/model-format.md).
#ifndef RAFFIA_IO_TOKENIZERS_TOKENIZER_FILE_H_
#define RAFFIA_IO_TOKENIZERS_TOKENIZER_FILE_H_

namespace raffia::internal {

constexpr const char* kTokenizerFile = "tokenizer.json";

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_TOKENIZER_FILE_H_
