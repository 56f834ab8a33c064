# How everything in this tree is compiled. Nothing here reaches users of the installed library.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  # An installed command finds the library relative to itself, for any prefix.
  file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set(CMAKE_INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  set(CMAKE_BUILD_RPATH ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})  # programs also load a module by its name

  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release or RelWithDebInfo" FORCE)
  endif()

  find_program(CCACHE ccache)
  if(CCACHE)
    # Paths below the source directory are made relative and the working directory is not hashed, so that another checkout of the same
    # sources finds its objects in the cache. The sloppiness is what ccache needs to handle precompiled headers.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
        CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE})
  endif()
endif()

add_library(raffia_build_flags INTERFACE)

# For what spends its time in the library or in LibTorch (commands, ops, modules, training, tests): a quarter of the build time saved.
add_library(raffia_quick_build INTERFACE)
target_compile_options(raffia_quick_build INTERFACE $<$<CONFIG:Release>:-O1>)

# Libraries export what is marked with RAFFIA_API.
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# raffia_library(NAME [WHOLE] [TYPE SHARED] [OUTPUT FILE] [USES NAME...] [PUBLIC LIBRARY...] [PRIVATE LIBRARY...]): sources are compiled once, into
#   raffia_NAME_objects   the objects; sources and their options are set here
#   raffia_NAME           the library that is installed, raffia::NAME. A shared one exports only what is marked with RAFFIA_API
#   raffia_NAME_internal  the same objects, for the commands, benchmarks, tests and fuzz targets, which need more than is exported
# USES names other libraries that are made here. WHOLE: a program takes all objects, because some of them register themselves.
function(raffia_library name)
  cmake_parse_arguments(arg "WHOLE" "TYPE;OUTPUT" "USES;PUBLIC;PRIVATE" ${ARGN})
  list(TRANSFORM arg_USES PREPEND raffia_ OUTPUT_VARIABLE used)
  list(TRANSFORM used APPEND _internal OUTPUT_VARIABLE used_internal)
  set(include_dir $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)

  set(objects raffia_${name}_objects)
  add_library(${objects} OBJECT)
  target_compile_features(${objects} PUBLIC cxx_std_20)
  target_include_directories(${objects} PRIVATE ${include_dir} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${objects} PRIVATE raffia_build_flags ${arg_PUBLIC} ${arg_PRIVATE})

  add_library(raffia_${name} ${arg_TYPE} $<TARGET_OBJECTS:${objects}>)
  add_library(raffia::${name} ALIAS raffia_${name})
  set_target_properties(raffia_${name} PROPERTIES EXPORT_NAME ${name} LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION}
                                                  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(arg_OUTPUT)
    set_target_properties(raffia_${name} PROPERTIES OUTPUT_NAME ${arg_OUTPUT})
  endif()
  target_compile_features(raffia_${name} PUBLIC cxx_std_20)
  target_include_directories(raffia_${name} PUBLIC ${include_dir} $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(raffia_${name} PUBLIC ${used} ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:raffia_build_flags> ${arg_PRIVATE})
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT RAFFIA_SANITIZE)
    target_link_options(raffia_${name} PRIVATE -Wl,-z,defs) # a name that another library does not export is found here
  endif()

  add_library(raffia_${name}_archive STATIC $<TARGET_OBJECTS:${objects}>)
  set_target_properties(raffia_${name}_archive PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(raffia_${name}_archive PUBLIC ${used_internal} PRIVATE raffia_build_flags ${arg_PRIVATE})
  add_library(raffia_${name}_internal INTERFACE)
  set(archive raffia_${name}_archive)
  if(arg_WHOLE)
    set(archive $<LINK_LIBRARY:WHOLE_ARCHIVE,${archive}>)
  endif()
  target_compile_features(raffia_${name}_internal INTERFACE cxx_std_20)
  target_include_directories(raffia_${name}_internal INTERFACE ${include_dir} ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(raffia_${name}_internal INTERFACE ${archive} ${arg_PUBLIC})
endfunction()

# raffia_link(NAME LIBRARY...): more private libraries for a raffia_library().
function(raffia_link name)
  foreach(target IN ITEMS objects archive)
    target_link_libraries(raffia_${name}_${target} PRIVATE ${ARGN})
  endforeach()
  target_link_libraries(raffia_${name} PRIVATE ${ARGN})
endfunction()

# raffia_precompile(TARGET HEADER...): precompiles the headers that most sources include, and these. It takes a third off the time to
# compile a source. Only with gcc, whose precompiled headers ccache can move between checkouts; the clang builds find includes that are
# missing. ccache reads what a source includes from its preprocessed form, where gcc has to name the precompiled header.
function(raffia_precompile target)
  if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
    target_precompile_headers(
      ${target} PRIVATE <fmt/format.h> <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <limits> <memory> <optional>
      <span> <sstream> <string> <string_view> <utility> <vector> ${ARGN})
  endif()
endfunction()

# raffia_reuse_precompiled(TARGET FROM): the same, with the precompiled headers of another target. They serve only sources with the very
# same flags, hence -fPIC everywhere.
function(raffia_reuse_precompiled target from)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# raffia_torch_include_flags(VARIABLE): where the headers of LibTorch are, as flags. The compiler finds its own directories by itself; naming
# them would change their order.
function(raffia_torch_include_flags variable)
  set(flags "")
  foreach(dir IN LISTS TORCH_INCLUDE_DIRS)
    if(NOT dir IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
      list(APPEND flags -isystem ${dir})
    endif()
  endforeach()
  set(${variable} ${flags} PARENT_SCOPE)
endfunction()

# Contraction is off so that scalar code rounds the same on every ISA and compiler; kernels use FMA explicitly.
target_compile_options(raffia_build_flags INTERFACE -ffp-contract=off -fno-math-errno)

# On 64-bit Arm, Highway compiles its functions for NEON with AES instructions. GCC inlines them only into functions that may use these too,
# which implicit constructors of structs of vectors could not otherwise. Nothing here uses one: see kAlwaysRunnable in src/core/isa.cc.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  target_compile_options(raffia_build_flags INTERFACE -march=armv8-a+crypto)
endif()

# Designated initialisers intentionally omit the fields that keep their defaults.
target_compile_options(raffia_build_flags INTERFACE -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(RAFFIA_WERROR)
  target_compile_options(raffia_build_flags INTERFACE -Werror)
endif()

# Kernels exist for EMU128 (the scalar fallback, which tests run everywhere), SSE4, AVX2, AVX3 and NEON. SSSE3 adds nothing to these; SVE
# does not compile: kernels keep vectors in structs, and the size of SVE's is not known then.
# Every translation unit sees the same set, or dispatch tables would disagree.
set(disabled_targets "HWY_SSSE3|HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128")
if(RAFFIA_SANITIZE)
  # Sanitizers see what runs, and every ISA costs build time: AVX2 and the fallback are what they run everywhere. They do not see masked
  # loads and stores either: tests/estimators/guard_page_test.cc checks all ISAs for accesses past the end.
  string(APPEND disabled_targets "|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL")
endif()
if(RAFFIA_NATIVE_ONLY)
  # The compiler knows the features of this CPU.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -march=native -dM -E -x c++ /dev/null OUTPUT_VARIABLE native_macros COMMAND_ERROR_IS_FATAL ANY)
  if(native_macros MATCHES "__AVX512BW__")
    string(APPEND disabled_targets "|HWY_SSE4|HWY_AVX2")
  elseif(native_macros MATCHES "__AVX2__")
    string(APPEND disabled_targets "|HWY_SSE4|HWY_AVX3|HWY_AVX3_DL")
  elseif(native_macros MATCHES "__SSE4_2__")
    string(APPEND disabled_targets "|HWY_AVX2|HWY_AVX3|HWY_AVX3_DL")
  endif()
endif()
target_compile_definitions(raffia_build_flags INTERFACE HWY_COMPILE_ALL_ATTAINABLE "HWY_DISABLED_TARGETS=(${disabled_targets})")

if(RAFFIA_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # gcc 12 sees overlapping copies in "literal" + string where there are none (its bug 105651).
    target_compile_options(raffia_build_flags INTERFACE -Wno-restrict)
  endif()
  set(sanitize_flags -fsanitize=${RAFFIA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(raffia_build_flags INTERFACE ${sanitize_flags})
  target_link_options(raffia_build_flags INTERFACE ${sanitize_flags})
endif()

if(RAFFIA_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "RAFFIA_BUILD_FUZZERS needs clang (libFuzzer), found ${CMAKE_CXX_COMPILER_ID}: cmake --preset asan")
  endif()
  target_compile_options(raffia_build_flags INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(raffia_build_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
