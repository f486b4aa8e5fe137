# SPDX-License-Identifier: Apache-2.0
# Options of the build, and the interface target that carries warnings and sanitizers.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

option(WEIR_BUILD_TESTS "Build the tests" ON)
option(WEIR_BUILD_FUZZERS "Build the libFuzzer targets (needs clang)" OFF)
option(WEIR_WARNINGS_AS_ERRORS "Treat warnings as errors" OFF)
option(WEIR_USE_CCACHE "Compile through ccache when it is installed" ON)
set(WEIR_SANITIZE "" CACHE STRING "address, thread, undefined, or a comma list of them")
set_property(CACHE WEIR_SANITIZE PROPERTY STRINGS "" address thread undefined address,undefined)

get_property(WEIR_MULTI_CONFIG GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
if(NOT CMAKE_BUILD_TYPE AND NOT WEIR_MULTI_CONFIG)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Debug, RelWithDebInfo or Release" FORCE)
endif()

# An installed program finds libweir.so beside it wherever the tree is moved to, and in the build
# folder, whose libraries lie in lib. Folders that are asked for by -DCMAKE_INSTALL_RPATH come
# after.
file(RELATIVE_PATH WEIR_BIN_TO_LIB ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
list(PREPEND CMAKE_INSTALL_RPATH $ORIGIN $ORIGIN/${WEIR_BIN_TO_LIB} $ORIGIN/../lib)
list(REMOVE_DUPLICATES CMAKE_INSTALL_RPATH)

if(WEIR_USE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(WEIR_CCACHE ccache)
  mark_as_advanced(WEIR_CCACHE)
  if(WEIR_CCACHE)
    # What is compiled in one folder is found from every other. Precompiled headers are cached only
    # when ccache is told that what they look at is known.
    set(launcher env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros ${WEIR_CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  endif()
endif()

add_library(weir_compile_options INTERFACE)
target_compile_options(weir_compile_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>)
# GCC 12 warns at -O3 of overlaps within std::string that cannot be (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(weir_compile_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(WEIR_WARNINGS_AS_ERRORS)
  target_compile_options(weir_compile_options INTERFACE -Werror)
endif()

if(WEIR_SANITIZE)
  string(REPLACE "," ";" WEIR_SANITIZERS "${WEIR_SANITIZE}")
  foreach(sanitizer IN LISTS WEIR_SANITIZERS)
    if(NOT sanitizer MATCHES "^(address|thread|undefined)$")
      message(FATAL_ERROR "WEIR_SANITIZE: '${sanitizer}' is none of address, thread, undefined")
    endif()
  endforeach()
  if("thread" IN_LIST WEIR_SANITIZERS AND "address" IN_LIST WEIR_SANITIZERS)
    message(FATAL_ERROR "WEIR_SANITIZE: address and thread cannot be combined")
  endif()
  target_compile_options(weir_compile_options INTERFACE -fsanitize=${WEIR_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(weir_compile_options INTERFACE -fsanitize=${WEIR_SANITIZE})
endif()

if(WEIR_BUILD_FUZZERS AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "WEIR_BUILD_FUZZERS needs clang: configure with `cmake --preset fuzz`")
endif()
if(WEIR_BUILD_FUZZERS)
  target_compile_options(weir_compile_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
