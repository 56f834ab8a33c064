# Headers, library, command, and the two ways to find them: find_package(raffia) and pkg-config raffia.
include(CMakePackageConfigHelpers)

install(TARGETS raffia_core raffia_runtime EXPORT raffiaTargets)
install(DIRECTORY include/raffia DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN torch EXCLUDE)
if(RAFFIA_BUILD_CLI)
  install(TARGETS raffia_cli)
  if(RAFFIA_BUILD_TORCH)
    install(TARGETS raffia_train)
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/raffia)
install(EXPORT raffiaTargets NAMESPACE raffia:: DESTINATION ${package_dir})
if(RAFFIA_BUILD_TORCH)  # a component of its own: who uses the core alone needs no Torch
  install(TARGETS raffia_torch EXPORT raffiaTorchTargets)
  install(DIRECTORY include/raffia/torch DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/raffia FILES_MATCHING PATTERN "*.h")
  install(EXPORT raffiaTorchTargets NAMESPACE raffia:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/raffiaConfig.cmake.in ${PROJECT_BINARY_DIR}/raffiaConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/raffiaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/raffiaConfig.cmake ${PROJECT_BINARY_DIR}/raffiaConfigVersion.cmake DESTINATION ${package_dir})

# The prefix is found from where raffia.pc lies, so that an installed tree may be moved.
file(RELATIVE_PATH PKGCONFIG_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
# Who links the shared library needs none of what is inside it.
set(PKGCONFIG_REQUIRES_PRIVATE "")
if(NOT BUILD_SHARED_LIBS)
  set(PKGCONFIG_REQUIRES_PRIVATE "Requires.private: libhwy fmt")
endif()
configure_file(cmake/raffia.pc.in ${PROJECT_BINARY_DIR}/raffia.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/raffia.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
