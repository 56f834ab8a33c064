# Builds for 64-bit Arm (Linux) with Debian's cross compiler, and runs what it builds under qemu-user: the preset `arm64`.
# The libraries are in a directory tree of their own, RAFFIA_ARM64_SYSROOT, which scripts/test_arm64.sh fills with Debian's arm64 packages.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)

# What CMake tries to compile reads this file again; other projects name the directory in the environment.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RAFFIA_ARM64_SYSROOT)
set(RAFFIA_ARM64_SYSROOT "$ENV{RAFFIA_ARM64_SYSROOT}" CACHE PATH "Directory tree with the libraries of arm64")
if(NOT IS_DIRECTORY "${RAFFIA_ARM64_SYSROOT}/usr/lib/aarch64-linux-gnu")
  message(FATAL_ERROR "RAFFIA_ARM64_SYSROOT is \"${RAFFIA_ARM64_SYSROOT}\", expected a directory with the libraries of arm64: scripts/test_arm64.sh makes it")
endif()
set(CMAKE_SYSROOT ${RAFFIA_ARM64_SYSROOT})

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(RAFFIA_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
mark_as_advanced(RAFFIA_QEMU_AARCH64)
if(RAFFIA_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${RAFFIA_QEMU_AARCH64} -L ${CMAKE_SYSROOT})
endif()

# Programs of this machine, libraries of the other one. Its own are searched first.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH) # an installed raffia lies elsewhere
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
