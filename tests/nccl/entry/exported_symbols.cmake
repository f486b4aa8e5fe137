# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=nm -DLIBRARY=libnccl.so.2 -DLIST=symbols.txt -P exported_symbols.cmake
# The library exports the functions of the list and their twins, the mark by which it knows itself,
# and nothing else.

execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL "(^|\n)[^ \n]+" exported "${symbols}")
list(TRANSFORM exported STRIP)

file(STRINGS ${LIST} rows REGEX "^[0-9]")
set(listed weir_nccl_marker)
foreach(row IN LISTS rows)
  string(REGEX REPLACE "^[0-9.]+ " "" name "${row}")
  list(APPEND listed ${name} p${name})
endforeach()
list(LENGTH listed count)
if(count LESS 180)
  message(FATAL_ERROR "only ${count} names in ${LIST}: has its form changed?")
endif()

set(only_exported ${exported})
list(REMOVE_ITEM only_exported ${listed})
set(only_listed ${listed})
list(REMOVE_ITEM only_listed ${exported})
if(only_exported)
  message(SEND_ERROR "exported, but not in ${LIST}: ${only_exported}")
endif()
if(only_listed)
  message(SEND_ERROR "in ${LIST}, but not exported: ${only_listed}")
endif()
message(STATUS "${count} symbols listed, all exported and nothing else")
