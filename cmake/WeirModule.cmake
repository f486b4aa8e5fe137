# SPDX-License-Identifier: Apache-2.0
# weir_transport_module(NAME SOURCES a.cc … [DEPENDS weir_net PkgConfig::ucx …])
# A transport as a file of its own, <libdir>/weir/plugins/libweir_NAME.so, so that libweir does not
# depend on what the transport stands on. Its target is weir_module_NAME; the function table's name
# must be NAME. It exports weir_transport_plugin and nothing else, and the loader finds it beside
# libweir, in the build tree as in the installed one. Call it only when its dependency was found
# (WeirDependencies.cmake has the row of the table). A test that needs the modules depends on the
# target weir_modules; those that were made are in the global property WEIR_TRANSPORT_MODULES.
set(WEIR_MODULE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/weir/plugins)
add_custom_target(weir_modules)

function(weir_transport_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  set(target weir_module_${name})
  set(script ${PROJECT_SOURCE_DIR}/cmake/weir_module.map)
  add_library(${target} MODULE ${ARG_SOURCES})
  target_include_directories(${target} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PRIVATE ${ARG_DEPENDS} weir_compile_options)
  target_link_options(${target} PRIVATE -Wl,--version-script,${script} -Wl,--exclude-libs,ALL)
  if(NOT WEIR_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,--no-undefined)
  endif()
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME weir_${name}
    PREFIX lib
    LINK_DEPENDS ${script}
    LIBRARY_OUTPUT_DIRECTORY ${WEIR_MODULE_OUTPUT_DIRECTORY})
  add_dependencies(weir_modules ${target})
  set_property(GLOBAL APPEND PROPERTY WEIR_TRANSPORT_MODULES ${name})
  weir_contained(${target})
  weir_final_rpath(${target})
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/weir/plugins)
endfunction()
