// Classes of code points for the patterns of byte-level BPE: letter (L*), number (N*), white space. Invalid code points have
// none.
#ifndef RAFFIA_IO_TOKENIZERS_UNICODE_CLASSES_H_
#define RAFFIA_IO_TOKENIZERS_UNICODE_CLASSES_H_

#include <cstdint>

namespace raffia::internal {

bool is_unicode_letter(uint32_t code);
bool is_unicode_number(uint32_t code);
bool is_unicode_space(uint32_t code);

// A byte is not a code point.
bool is_unicode_letter(char) = delete;
bool is_unicode_number(char) = delete;
bool is_unicode_space(char) = delete;

}  // namespace raffia::internal

#endif  // RAFFIA_IO_TOKENIZERS_UNICODE_CLASSES_H_
