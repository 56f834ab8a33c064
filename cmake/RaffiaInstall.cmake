# Headers, libraries, commands, licence, documents, and the two ways to find the libraries: find_package(raffia) and pkg-config.
include(CMakePackageConfigHelpers)

install(TARGETS raffia_core raffia_runtime EXPORT raffiaTargets)
install(DIRECTORY include/raffia DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN torch EXCLUDE)
if(RAFFIA_BUILD_CLI)
  install(TARGETS raffia_cli)
  if(RAFFIA_BUILD_TORCH)
    install(TARGETS raffia_train)
  endif()
  if(TARGET raffia_printed)
    set(printed ${PROJECT_BINARY_DIR}/share)
    install(FILES ${printed}/raffia.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${printed}/raffia.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME raffia)
    install(FILES ${printed}/_raffia DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${printed}/raffia.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/raffia)
install(EXPORT raffiaTargets NAMESPACE raffia:: DESTINATION ${package_dir})
if(RAFFIA_BUILD_TORCH)  # a separate component: the core does not need Torch
  install(TARGETS raffia_torch EXPORT raffiaTorchTargets)
  install(DIRECTORY include/raffia/torch DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/raffia FILES_MATCHING PATTERN "*.h")
  install(EXPORT raffiaTorchTargets NAMESPACE raffia:: DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/raffiaConfig.cmake.in ${PROJECT_BINARY_DIR}/raffiaConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/raffiaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/raffiaConfig.cmake ${PROJECT_BINARY_DIR}/raffiaConfigVersion.cmake DESTINATION ${package_dir})

# The prefix is derived from the location of raffia.pc, so that an installed tree can be moved.
file(RELATIVE_PATH PKGCONFIG_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
# A program that links the shared libraries needs none of what they are made of.
set(PKGCONFIG_REQUIRES_PRIVATE "")
set(PKGCONFIG_RUNTIME_REQUIRES_PRIVATE "")
set(PKGCONFIG_RUNTIME_LIBS_PRIVATE "")
if(NOT BUILD_SHARED_LIBS)
  set(PKGCONFIG_REQUIRES_PRIVATE "Requires.private: libhwy fmt")
  set(PKGCONFIG_RUNTIME_REQUIRES_PRIVATE "Requires.private: zlib liblzma")
  set(PKGCONFIG_RUNTIME_LIBS_PRIVATE "Libs.private: -lsentencepiece_train -lsentencepiece")
endif()
foreach(name IN ITEMS raffia raffia_runtime)
  configure_file(cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

install(FILES LICENSE README.md CHANGELOG.md VERSIONING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
