# SPDX-License-Identifier: Apache-2.0
# Precompiled headers: what most files include of the standard library, fmt and GoogleTest is parsed
# three times and not a thousand times, once for each kind of code that compilers tell apart:
# libraries, programs and tests. No header of our own is among them, so that a change of one
# compiles again what includes it and nothing else.
#
# A precompiled header hides that a file lacks an include; tests/tree/named_headers_test.cc finds
# that instead, and knows the names of each header below. -DWEIR_PRECOMPILE=OFF compiles without
# them.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(WEIR_PRECOMPILE_DEFAULT ON)
else()  # clang's check of them is strict: one set for every other set of definitions
  set(WEIR_PRECOMPILE_DEFAULT OFF)
endif()
option(WEIR_PRECOMPILE "Precompile the headers that most files include" ${WEIR_PRECOMPILE_DEFAULT})

set(WEIR_PRECOMPILED_HEADERS
  <algorithm>
  <array>
  <atomic>
  <chrono>
  <condition_variable>
  <deque>
  <functional>
  <map>
  <memory>
  <mutex>
  <optional>
  <set>
  <span>
  <string>
  <thread>
  <unordered_map>
  <vector>
  <fmt/format.h>)
set(WEIR_PRECOMPILED_HEADERS_OF_TESTS
  <filesystem>
  <fstream>
  <gtest/gtest.h>
  <random>
  <sstream>)

# What two files must have alike to share precompiled headers: definitions that those headers look
# at.
function(weir_define_as_precompiled target)
  target_compile_definitions(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:$<TARGET_PROPERTY:fmt::fmt,INTERFACE_COMPILE_DEFINITIONS>>)
  # libstdc++ silences these within std::string by pragmas, which GCC 12 does not keep in a
  # precompiled header.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-array-bounds>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow>
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overread>)
  if(WEIR_CCACHE)  # it looks for the header in what the preprocessor writes
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# The targets that compile them: nothing else is in them.
function(weir_add_precompiled)
  set(source ${PROJECT_BINARY_DIR}/precompiled/main.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  add_library(weir_precompiled_library OBJECT ${source})
  add_executable(weir_precompiled_program ${source})
  set(kinds library program)
  if(WEIR_BUILD_TESTS)
    add_executable(weir_precompiled_test ${source})
    target_link_libraries(weir_precompiled_test PRIVATE GTest::gtest)
    target_precompile_headers(weir_precompiled_test PRIVATE ${WEIR_PRECOMPILED_HEADERS_OF_TESTS})
    list(APPEND kinds test)
  endif()
  foreach(kind IN LISTS kinds)
    set(target weir_precompiled_${kind})
    target_link_libraries(${target} PRIVATE weir_compile_options fmt::fmt)
    target_precompile_headers(${target} PRIVATE ${WEIR_PRECOMPILED_HEADERS})
    weir_define_as_precompiled(${target})
  endforeach()
endfunction()

# Lets every target of `folder` and below use them; called when all are declared.
function(weir_use_precompiled folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    get_target_property(sources ${target} SOURCES)
    if(target MATCHES "^weir_precompiled_" OR NOT "${sources}" MATCHES "[.]cc(;|$)")
      continue()
    endif()
    # Behind "#pragma GCC target" GCC takes this option from the precompiled header, where it is not
    # set: products and sums would be contracted all the same.
    get_target_property(options ${target} COMPILE_OPTIONS)
    if("${options}" MATCHES "-ffp-contract")
      continue()
    endif()
    set(kind library)
    if(type STREQUAL "EXECUTABLE")
      get_target_property(libraries ${target} LINK_LIBRARIES)
      set(kind program)
      if("${libraries}" MATCHES "GTest::")
        set(kind test)
      endif()
    endif()
    weir_define_as_precompiled(${target})
    set_target_properties(${target} PROPERTIES
      PRECOMPILE_HEADERS_REUSE_FROM weir_precompiled_${kind})
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    weir_use_precompiled(${below})
  endforeach()
endfunction()
