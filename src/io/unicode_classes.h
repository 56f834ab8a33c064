// What code points are, as the patterns of byte-level BPE ask: letter (L*), number (N*), white space. One that is no code point
// is nothing of these.
#ifndef RAFFIA_IO_UNICODE_CLASSES_H_
#define RAFFIA_IO_UNICODE_CLASSES_H_

#include <cstdint>

namespace raffia {

bool is_letter(uint32_t code);
bool is_number(uint32_t code);
bool is_space(uint32_t code);

}  // namespace raffia

#endif  // RAFFIA_IO_UNICODE_CLASSES_H_
