// RAFFIA_SIBLING_API marks what a shared library of Raffia exports for the others, which are of the same version: libraffia for
// libraffia_runtime, both for libraffia_torch. No installed header declares it. A test (tests/install/exports_test.py) fails if a
// mark is not needed.
#ifndef RAFFIA_CORE_SIBLING_API_H_
#define RAFFIA_CORE_SIBLING_API_H_

#include "raffia/api.h"

#define RAFFIA_SIBLING_API RAFFIA_API

#endif  // RAFFIA_CORE_SIBLING_API_H_
