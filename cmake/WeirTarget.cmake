# SPDX-License-Identifier: Apache-2.0
# Four ways to declare a target, so that each directory's CMakeLists.txt is a list of names.

# weir_final_rpath(TARGET…)
# For what is installed: it is linked with the RPATH that it keeps. Otherwise CMake leaves room for
# the change at installation by colons at the end of the RPATH, and to the loader an empty entry is
# the current folder.
function(weir_final_rpath)
  set_target_properties(${ARGN} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
endfunction()

# weir_component(NAME SOURCES a.cc … [DEPENDS weir_base …])
# A static library of the core. Headers are included as "core/<folder>/<file>.h".
function(weir_component name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS} PRIVATE weir_compile_options)
endfunction()

# weir_executable(NAME SOURCES a.cc … [DEPENDS …])
# A program that is installed.
function(weir_executable name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} weir_output weir_compile_options)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  weir_final_rpath(${name})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# weir_test(NAME SOURCES a.cc … [DEPENDS …] [LABEL fast|slow|root|gpu|soak] [TIMEOUT seconds])
# One GoogleTest program is one ctest entry: starting is dearer than running.
function(weir_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_compile_definitions(${name} PRIVATE
    WEIR_TEST_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures")
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} weir_compile_options GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
endfunction()

# weir_test_support(NAME SOURCES a.cc … [DEPENDS …])
# What several tests share: a static library, so that it is compiled once.
function(weir_test_support name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS} PRIVATE weir_compile_options)
endfunction()
