# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: the library, its headers, a CMake package
# (`find_package(weir)`, target weir::weir) and a pkg-config file. Programs install themselves
# (weir_executable). Nothing that is installed holds an absolute path, so the tree may be moved
# afterwards.

if(NOT TARGET weir)
  return()
endif()

include(CMakePackageConfigHelpers)

# libweir.so.0 -> libweir.so.0.1.0; only weir_* leaves the library, whatever it is linked from.
set(WEIR_VERSION_SCRIPT ${PROJECT_SOURCE_DIR}/cmake/weir.map)
set(WEIR_INCLUDE_DIRECTORIES
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
set_target_properties(weir PROPERTIES
  OUTPUT_NAME weir
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${WEIR_VERSION_SCRIPT}
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
  INTERFACE_INCLUDE_DIRECTORIES "${WEIR_INCLUDE_DIRECTORIES}")
# Threads that end call it (PerThread), so that it stays loaded (nodelete).
target_link_options(weir PRIVATE -Wl,--version-script,${WEIR_VERSION_SCRIPT} -Wl,--exclude-libs,ALL
  -Wl,-z,nodelete)
if(NOT WEIR_SANITIZE)
  target_link_options(weir PRIVATE -Wl,--no-undefined)
endif()
add_library(weir::weir ALIAS weir)

weir_contained(weir)
weir_final_rpath(weir)
install(TARGETS weir EXPORT weir-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES include/weir/weir.h include/weir/offload.h include/weir/plugin.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/weir)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(WEIR_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/weir)
configure_package_config_file(cmake/weir-config.cmake.in weir-config.cmake
  INSTALL_DESTINATION ${WEIR_PACKAGE_DIR})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(weir-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weir-config.cmake
  ${PROJECT_BINARY_DIR}/weir-config-version.cmake
  DESTINATION ${WEIR_PACKAGE_DIR})
install(EXPORT weir-targets NAMESPACE weir:: DESTINATION ${WEIR_PACKAGE_DIR})

# weir.pc names its directories relative to where it lies.
file(RELATIVE_PATH WEIR_PC_TO_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/weir.pc.in weir.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The build folder serves as well: PKG_CONFIG_PATH=build/release.
configure_file(cmake/weir-uninstalled.pc.in weir-uninstalled.pc @ONLY)
