# SPDX-License-Identifier: Apache-2.0
# Runs PROGRAM with three ranks under LAUNCHER (KIND: openmpi or mpich): the exit status is right
# and the table is printed once, for three ranks.
if(NOT LAUNCHER OR LAUNCHER MATCHES "NOTFOUND")
  message("skipped: no mpirun.${KIND} on this machine")
  return()
endif()
set(flags -n 3)
if(KIND STREQUAL "openmpi")
  list(APPEND flags --oversubscribe --allow-run-as-root --bind-to none)
endif()
set(arguments -b 8 -e 64K -f 16 -n 3 --fixed-buffers)

execute_process(COMMAND ${LAUNCHER} ${flags} ${PROGRAM} ${arguments}
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "exit status ${status}\n${output}\n${errors}")
endif()
string(REGEX MATCHALL "nRanks 3 " headers "${output}")
list(LENGTH headers count)
if(NOT count EQUAL 1 OR NOT output MATCHES "# Out of bounds values : 0 OK")
  message(FATAL_ERROR "not one table of three ranks:\n${output}\n${errors}")
endif()

# Threads below the launcher's processes: six ranks.
execute_process(COMMAND ${LAUNCHER} ${flags} ${PROGRAM} ${arguments} -t 2
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(NOT status EQUAL 0 OR NOT output MATCHES "nThread 2 nRanks 6 ")
  message(FATAL_ERROR "two threads each: exit status ${status}\n${output}\n${errors}")
endif()

# A wrong value must reach the launcher's exit status.
execute_process(COMMAND ${LAUNCHER} ${flags} ${PROGRAM} ${arguments} --test-corrupt 1
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
if(status EQUAL 0 OR NOT output MATCHES "FAILED")
  message(FATAL_ERROR "a damaged result went unnoticed: ${status}\n${output}\n${errors}")
endif()
