// Every public header includes this one first, so that the first error with an older standard says what to do.
#ifndef RAFFIA_CXX20_H_
#define RAFFIA_CXX20_H_

#if __cplusplus < 202002L
#error "Raffia needs C++20: compile with -std=c++20 (CMake: target_compile_features(your_target PRIVATE cxx_std_20))"
#endif

#endif  // RAFFIA_CXX20_H_
