# SPDX-License-Identifier: Apache-2.0
# Installs BUILD into a fresh prefix below WORK, moves the tree (nothing in it may hold an absolute
# path), and builds and runs EXAMPLES against it in the given WAY: cmake or pkg_config.
cmake_policy(VERSION 3.25)

function(run what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${what}: exit status ${status}\n${command}\n${output}")
  endif()
  set(run_output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
set(prefix ${WORK}/prefix)
file(RENAME ${WORK}/first ${prefix})

foreach(file include/weir/weir.h include/weir/plugin.h ${LIBDIR}/libweir.so
  ${LIBDIR}/pkgconfig/weir.pc
             ${LIBDIR}/cmake/weir/weir-config.cmake bin/all_reduce_perf
             include/weir/nccl.h include/weir/nccl_include/nccl.h ${LIBDIR}/weir/libnccl.so.2)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# The installed programs find the installed library.
set(ENV{LD_LIBRARY_PATH} "")
run("installed all_reduce_perf" ${prefix}/bin/all_reduce_perf --ranks 2 -b 1K -e 1K -n 2
    --fixed-buffers)

# They, and the libraries, look in no other folder, and not in the current one.
run("the entries of RPATH" ${CMAKE_COMMAND} -E env WEIR_TEST_PREFIX=${prefix}
    ${RUNPATHS_TEST} --gtest_filter=InstalledRunpaths.*)
file(GLOB programs ${prefix}/bin/*)
foreach(program IN LISTS programs)
  run("installed ${program} finds its libraries" ${program} --help)
endforeach()
foreach(program weir-info all_reduce_perf)
  run("installed ${program} beside a planted library" ${CMAKE_COMMAND} -E chdir ${PLANTED}
      ${prefix}/bin/${program} --help)
endforeach()

# The installed library finds its modules, wherever the tree was moved. (ncclnet gives ours back to
# ourselves.)
set(ENV{WEIR_NCCL_NET_PLUGIN} ${prefix}/${LIBDIR}/libnccl-net-weir.so)
foreach(module IN LISTS MODULES)
  if(NOT EXISTS ${prefix}/${LIBDIR}/weir/plugins/libweir_${module}.so)
    message(FATAL_ERROR "not installed: the module ${module}")
  endif()
  if(module STREQUAL "nccl")
    continue()  # it carries no messages
  endif()
  run("installed all_reduce_perf over ${module}" ${CMAKE_COMMAND} -E env WEIR_TRANSPORT=${module}
      ${prefix}/bin/all_reduce_perf --ranks 2 -b 1K -e 1K -n 2 --fixed-buffers)
endforeach()

if(WAY STREQUAL "cmake")
  set(flags "")
  if(SANITIZE)
    set(flags -DCMAKE_C_FLAGS=-fsanitize=${SANITIZE} -DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE})
  endif()
  run("configure the examples" ${CMAKE_COMMAND} -S ${EXAMPLES} -B ${WORK}/examples -G ${GENERATOR}
      -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C_COMPILER}
      -DCMAKE_CXX_COMPILER=${CXX_COMPILER} ${flags})
  run("build the examples" ${CMAKE_COMMAND} --build ${WORK}/examples)
  run("run the examples" ${CMAKE_CTEST_COMMAND} --test-dir ${WORK}/examples --output-on-failure
      --no-tests=error)
  message("${run_output}")
  return()
endif()

find_program(PKG_CONFIG pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
run("pkg-config" ${PKG_CONFIG} --cflags --libs weir)
separate_arguments(flags UNIX_COMMAND "${run_output}")
if(SANITIZE)
  list(APPEND flags -fsanitize=${SANITIZE})
endif()
set(ENV{LD_LIBRARY_PATH} ${prefix}/${LIBDIR})
foreach(name 01_first_all_reduce 04_windows 07_ring 14_arena)
  run("cc ${name}" ${C_COMPILER} -O2 ${EXAMPLES}/${name}.c -o ${WORK}/${name} ${flags})
  run("${name}" ${WORK}/${name})
  message("${name}: ${run_output}")
endforeach()
