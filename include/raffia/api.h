// RAFFIA_API marks what the shared libraries export: a function, a variable, or a class with all its members.
// Everything else in them is hidden: programs cannot link to it.
#ifndef RAFFIA_API_H_
#define RAFFIA_API_H_

#include "raffia/cxx20.h"

#if defined(__GNUC__) || defined(__clang__)
#define RAFFIA_API __attribute__((visibility("default")))
#else
#define RAFFIA_API
#endif

#endif  // RAFFIA_API_H_
