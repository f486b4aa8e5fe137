# SPDX-License-Identifier: Apache-2.0
# Packages. Required ones stop the configure step with what to install; optional ones are found or
# left out, and weir_print_dependency_table() says which and why. Nothing here downloads anything.
#
# What the rest of the build may use:
#   required   fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json CLI11::CLI11 pugixml::pugixml
#              PkgConfig::hwloc PkgConfig::hwy PkgConfig::tomlplusplus PkgConfig::xxhash
#              OpenSSL::Crypto OpenSSL::SSL Threads::Threads
#              with WEIR_BUILD_TESTS GTest::gtest GTest::gmock
#   optional   WEIR_HAVE_<X> (ON or OFF) and, when ON, the target:
#              CUDA CUDA::cudart    NCCL WEIR_NCCL_INCLUDE_DIR    UCX PkgConfig::ucx
#              LIBFABRIC PkgConfig::libfabric    PMIX PkgConfig::pmix    URING PkgConfig::uring
#              ARCHIVES weir_contained()
#              OPENMPI, MPICH WEIR_<X>_CC and WEIR_<X>_RUN (programs)
#              BENCHMARK benchmark::benchmark
#              GLOO (perf/tcp_compare compiles against it by itself)
#              PYTORCH WEIR_PYTORCH_* of cmake/WeirPyTorch.cmake

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

# ---- The table -----------------------------------------------------------------------------------

set(WEIR_DEPENDENCY_ROWS "")
set(WEIR_MISSING_PACKAGES "")

# One row: component, found version ("" = left out), what it is for, and why it was left out.
macro(weir_dependency_row component version purpose reason)
  list(APPEND WEIR_DEPENDENCY_ROWS "${component}|${version}|${purpose}|${reason}")
endmacro()

# A required component; every missing one is collected, so that one run names them all.
macro(weir_require component found version purpose package)
  if(${found})
    weir_dependency_row("${component}" "${version}" "${purpose}" "")
  else()
    weir_dependency_row("${component}" "" "${purpose}" "required, install ${package}")
    list(APPEND WEIR_MISSING_PACKAGES ${package})
  endif()
endmacro()

# An optional component: sets WEIR_HAVE_<name>. -DWEIR_WITH_<name>=OFF leaves it out.
macro(weir_optional name component found version purpose reason)
  option(WEIR_WITH_${name} "Use ${component} when it is found" ON)
  if(NOT WEIR_WITH_${name})
    set(WEIR_HAVE_${name} OFF)
    weir_dependency_row("${component}" "" "${purpose}" "WEIR_WITH_${name} is OFF")
  elseif(${found})
    set(WEIR_HAVE_${name} ON)
    weir_dependency_row("${component}" "${version}" "${purpose}" "")
  else()
    set(WEIR_HAVE_${name} OFF)
    weir_dependency_row("${component}" "" "${purpose}" "${reason}")
  endif()
endmacro()

function(weir_pad out text width)
  string(LENGTH "${text}" length)
  if(length LESS width)
    math(EXPR missing "${width} - ${length}")
    string(REPEAT " " ${missing} spaces)
    string(APPEND text "${spaces}")
  endif()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

function(weir_print_dependency_table)
  set(widths 16 12 42)
  set(lines
    "component        version      what for                                   if left out, why"
    "---------------- ------------ ------------------------------------------ ----------------")
  foreach(row IN LISTS WEIR_DEPENDENCY_ROWS)
    string(REPLACE "|" ";" cells "${row}")
    list(GET cells 0 component)
    list(GET cells 1 version)
    list(GET cells 2 purpose)
    list(GET cells 3 reason)
    if(version STREQUAL "")
      set(version "left out")
    endif()
    weir_pad(component "${component}" 16)
    weir_pad(version "${version}" 12)
    weir_pad(purpose "${purpose}" 42)
    string(STRIP "${component} ${version} ${purpose} ${reason}" line)
    list(APPEND lines "${line}")
  endforeach()
  list(JOIN lines "\n  " table)
  message(STATUS "Weir ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
    "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\n  ${table}\n")
endfunction()

# ---- Required ------------------------------------------------------------------------------------

pkg_check_modules(fmt QUIET IMPORTED_TARGET fmt)
weir_require("fmt" fmt_FOUND "${fmt_VERSION}" "text formatting" libfmt-dev)
pkg_check_modules(spdlog QUIET IMPORTED_TARGET spdlog)
weir_require("spdlog" spdlog_FOUND "${spdlog_VERSION}" "log lines" libspdlog-dev)
find_package(nlohmann_json QUIET)
weir_require("nlohmann-json" nlohmann_json_FOUND "${nlohmann_json_VERSION}" "JSON output and caches"
  nlohmann-json3-dev)
find_package(CLI11 QUIET)
weir_require("CLI11" CLI11_FOUND "${CLI11_VERSION}" "command lines of the tools" libcli11-dev)
find_package(pugixml QUIET CONFIG)
weir_require("pugixml" pugixml_FOUND "${pugixml_VERSION}" "NCCL topology files" libpugixml-dev)
pkg_check_modules(libcrypto QUIET IMPORTED_TARGET libcrypto>=3)
pkg_check_modules(libssl QUIET IMPORTED_TARGET libssl>=3)
weir_require("OpenSSL" libssl_FOUND "${libssl_VERSION}" "proof of the job secret, TLS" libssl-dev)

pkg_check_modules(hwloc QUIET IMPORTED_TARGET hwloc>=2.4)
weir_require("hwloc" hwloc_FOUND "${hwloc_VERSION}" "the machine's topology" libhwloc-dev)
pkg_check_modules(hwy QUIET IMPORTED_TARGET libhwy>=1.0)
weir_require("Highway" hwy_FOUND "${hwy_VERSION}" "vector kernels for every instruction set"
  libhwy-dev)
pkg_check_modules(tomlplusplus QUIET IMPORTED_TARGET tomlplusplus)
weir_require("toml++" tomlplusplus_FOUND "${tomlplusplus_VERSION}" "tuning rules"
  libtomlplusplus-dev)
pkg_check_modules(xxhash QUIET IMPORTED_TARGET libxxhash)
weir_require("xxHash" xxhash_FOUND "${xxhash_VERSION}" "fingerprints of calls and topologies"
  libxxhash-dev)
if(WEIR_BUILD_TESTS)
  find_package(GTest QUIET)
  weir_require("GoogleTest" GTest_FOUND "${GTest_VERSION}" "tests" "libgtest-dev libgmock-dev")
endif()

if(WEIR_MISSING_PACKAGES)
  weir_print_dependency_table()
  list(JOIN WEIR_MISSING_PACKAGES " " packages)
  message(FATAL_ERROR
    "Required packages are missing. Run tools/setup, or: apt-get install ${packages}")
endif()

# What these names link is chosen for each program and library (WeirContained.cmake). Debian has no
# archives of fmt, spdlog, toml++ and Highway: src/bundled compiles what is needed of them. All
# objects are compiled as for the shared libraries.
foreach(name fmt::fmt spdlog::spdlog OpenSSL::Crypto OpenSSL::SSL)
  add_library(${name} INTERFACE IMPORTED)
endforeach()
set_target_properties(fmt::fmt PROPERTIES INTERFACE_COMPILE_DEFINITIONS FMT_SHARED)
set_target_properties(spdlog::spdlog PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS "SPDLOG_SHARED_LIB;SPDLOG_COMPILED_LIB;SPDLOG_FMT_EXTERNAL")
weir_two_ways(fmt::fmt SHARED PkgConfig::fmt CONTAINED weir_bundled_fmt)
weir_two_ways(spdlog::spdlog SHARED ${spdlog_LINK_LIBRARIES} CONTAINED weir_bundled_spdlog)
weir_two_ways(PkgConfig::hwy SHARED ${hwy_LINK_LIBRARIES} CONTAINED weir_bundled_highway)
weir_two_ways(PkgConfig::tomlplusplus SHARED ${tomlplusplus_LINK_LIBRARIES}
  CONTAINED weir_bundled_toml)
# OpenSSL's archives may need those of others in their turn.
set(shared_libraries ${libcrypto_LINK_LIBRARIES})
foreach(name IN LISTS libcrypto_STATIC_LIBRARIES)
  if(name MATCHES "^(crypto|dl|pthread)$")
    continue()
  endif()
  find_library(WEIR_LIBRARY_${name} ${name})
  mark_as_advanced(WEIR_LIBRARY_${name})
  if(WEIR_LIBRARY_${name})
    list(APPEND shared_libraries ${WEIR_LIBRARY_${name}})
  else()
    list(APPEND WEIR_MISSING_ARCHIVES lib${name}.a)
  endif()
endforeach()
weir_find_archives(archives_of_crypto ${shared_libraries})
weir_two_ways(OpenSSL::Crypto SHARED ${libcrypto_LINK_LIBRARIES} CONTAINED ${archives_of_crypto})
weir_find_archives(archive_of_ssl ${libssl_LINK_LIBRARIES})
weir_two_ways(OpenSSL::SSL SHARED ${libssl_LINK_LIBRARIES}
  CONTAINED ${archive_of_ssl} ${archives_of_crypto})
weir_find_archives(archive_of_xxhash ${xxhash_LINK_LIBRARIES})
weir_two_ways(PkgConfig::xxhash SHARED ${xxhash_LINK_LIBRARIES} CONTAINED ${archive_of_xxhash})
if(TARGET pugixml::static)
  weir_two_ways(pugixml::pugixml SHARED pugixml::shared CONTAINED pugixml::static)
else()
  list(APPEND WEIR_MISSING_ARCHIVES libpugixml.a)
endif()
# Opened at run time (src/core/topo/hwloc_library.cc).
set_target_properties(PkgConfig::hwloc PROPERTIES INTERFACE_LINK_LIBRARIES "")

# ---- Optional ------------------------------------------------------------------------------------

find_package(CUDAToolkit QUIET)
weir_optional(CUDA "CUDA toolkit" CUDAToolkit_FOUND "${CUDAToolkit_VERSION}"
  "device memory and kernels"
  "no nvcc or toolkit headers, set CUDAToolkit_ROOT")

# Of the toolkit only nvcc: what it compiles is loaded through CUDA's driver, and nothing is linked.
set(architectures 80 90)
if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND architectures 100)
endif()
set(WEIR_CUDA_ARCHITECTURES ${architectures} CACHE STRING
  "Architectures that the reduction kernels are compiled for; PTX serves all others from 75 on")
set(WEIR_NVCC_FOUND OFF)
if(WEIR_HAVE_CUDA AND CUDAToolkit_NVCC_EXECUTABLE)
  set(WEIR_NVCC_FOUND ON)
endif()
list(JOIN WEIR_CUDA_ARCHITECTURES "," WEIR_CUDA_ARCHITECTURES_TEXT)
weir_optional(KERNELS "device kernels" WEIR_NVCC_FOUND "sm ${WEIR_CUDA_ARCHITECTURES_TEXT}"
  "reductions of libnccl.so.2 on devices" "no CUDA toolkit with nvcc")

find_path(WEIR_NCCL_INCLUDE_DIR nccl.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_HOME PATH_SUFFIXES include)
mark_as_advanced(WEIR_NCCL_INCLUDE_DIR)
set(WEIR_NCCL_VERSION "")
if(WEIR_NCCL_INCLUDE_DIR)
  file(STRINGS ${WEIR_NCCL_INCLUDE_DIR}/nccl.h WEIR_NCCL_LINES
    REGEX "^#define +NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" WEIR_NCCL_VERSION "${WEIR_NCCL_LINES}")
  list(JOIN WEIR_NCCL_VERSION "." WEIR_NCCL_VERSION)
endif()
weir_optional(NCCL "NCCL header" WEIR_NCCL_INCLUDE_DIR "${WEIR_NCCL_VERSION}" "shim checks"
  "no nccl.h, install libnccl-dev or set NCCL_HOME")

# An optional pkg-config module: name, component, module, purpose, Debian package.
macro(weir_optional_module name component module purpose package)
  string(TOLOWER ${name} WEIR_PREFIX)
  pkg_check_modules(${WEIR_PREFIX} QUIET IMPORTED_TARGET ${module})
  weir_optional(${name} "${component}" ${WEIR_PREFIX}_FOUND "${${WEIR_PREFIX}_VERSION}" "${purpose}"
    "not found, install ${package}")
endmacro()

weir_optional_module(UCX "UCX" ucx "transport ucx" libucx-dev)
weir_optional_module(LIBFABRIC "libfabric" libfabric "transport ofi" libfabric-dev)
weir_optional_module(PMIX "PMIx" pmix "start under PMIx launchers" libpmix-dev)
weir_optional_module(URING "liburing" liburing "optimizer state on NVMe, many connections of tcp"
  liburing-dev)
if(WEIR_HAVE_URING)
  weir_find_archives(archive_of_uring ${uring_LINK_LIBRARIES})
  weir_two_ways(PkgConfig::uring SHARED ${uring_LINK_LIBRARIES} CONTAINED ${archive_of_uring})
endif()

# All or none of them (WeirContained.cmake).
set(WEIR_ALL_ARCHIVES ON)
list(JOIN WEIR_MISSING_ARCHIVES " " names)
set(reason "not found: ${names}")
if(WEIR_SANITIZE)  # its runtime replaces functions of the shared libstdc++
  set(reason "sanitizers need the shared libraries")
endif()
if(WEIR_SANITIZE OR WEIR_MISSING_ARCHIVES)
  set(WEIR_ALL_ARCHIVES OFF)
endif()
weir_optional(ARCHIVES "static archives" WEIR_ALL_ARCHIVES found
  "libraries that load where only glibc is" "${reason}")

# Both MPIs are only peers to compare with, and launchers: never linked into the library. Debian
# installs both side by side under these names.
foreach(mpi OPENMPI MPICH)
  string(TOLOWER ${mpi} flavour)
  find_program(WEIR_${mpi}_CC mpicc.${flavour})
  find_program(WEIR_${mpi}_RUN mpirun.${flavour})
  mark_as_advanced(WEIR_${mpi}_CC WEIR_${mpi}_RUN)
  set(WEIR_${mpi}_BOTH OFF)
  set(WEIR_${mpi}_VERSION "")
  if(WEIR_${mpi}_CC AND WEIR_${mpi}_RUN)
    set(WEIR_${mpi}_BOTH ON)
    string(REPLACE "openmpi" "ompi" module ${flavour})
    pkg_check_modules(weir_${flavour} QUIET ${module})
    set(WEIR_${mpi}_VERSION ${weir_${flavour}_VERSION})
    if(NOT WEIR_${mpi}_VERSION)
      set(WEIR_${mpi}_VERSION found)
    endif()
  endif()
endforeach()
weir_optional(OPENMPI "Open MPI" WEIR_OPENMPI_BOTH "${WEIR_OPENMPI_VERSION}"
  "launcher, and peer of perf/compare"
  "no mpicc.openmpi, install openmpi-bin libopenmpi-dev")
weir_optional(MPICH "MPICH" WEIR_MPICH_BOTH "${WEIR_MPICH_VERSION}"
  "launcher, and peer of perf/compare"
  "no mpicc.mpich, install mpich libmpich-dev")

# Another peer, of perf/tcp_compare.
find_path(WEIR_GLOO_INCLUDE_DIR gloo/algorithm.h)
find_library(WEIR_GLOO_LIBRARY gloo)
mark_as_advanced(WEIR_GLOO_INCLUDE_DIR WEIR_GLOO_LIBRARY)
set(WEIR_GLOO_BOTH OFF)
if(WEIR_GLOO_INCLUDE_DIR AND WEIR_GLOO_LIBRARY)
  set(WEIR_GLOO_BOTH ON)
endif()
weir_optional(GLOO "Gloo" WEIR_GLOO_BOTH found "peer of perf/tcp_compare"
  "not found, install libgloo-dev")

# ---- PyTorch -------------------------------------------------------------------------------------

include(WeirPyTorch)
if(WEIR_SANITIZE)  # Python is not linked with its runtime
  set(WEIR_PYTORCH_MISSING "not in builds with sanitizers")
else()
  weir_find_pytorch()
endif()
weir_optional(PYTORCH "PyTorch" WEIR_PYTORCH_VERSION "${WEIR_PYTORCH_VERSION}"
  "Python package weir, backend of torch.distributed" "${WEIR_PYTORCH_MISSING}")

find_package(benchmark QUIET)
weir_optional(BENCHMARK "Google Benchmark" benchmark_FOUND "${benchmark_VERSION}" "micro-benchmarks"
  "not found, install libbenchmark-dev")
