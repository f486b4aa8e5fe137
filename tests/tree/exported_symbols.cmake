# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=nm -DLIBRARY=libweir.so -DHEADERS=weir.h,offload.h -P exported_symbols.cmake
# The library exports exactly the functions that its headers declare.

execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL "(^|\n)[^ \n]+" exported "${symbols}")
list(TRANSFORM exported STRIP)
list(FILTER exported EXCLUDE REGEX "^(_init|_fini|_edata|_end|__bss_start)$")

string(REPLACE "," ";" HEADERS "${HEADERS}")
set(text "")
foreach(header IN LISTS HEADERS)
  file(READ ${header} one)
  string(APPEND text "${one}")
endforeach()
string(REGEX REPLACE "/\\*([^*]|\\*+[^*/])*\\*+/" "" text "${text}")
string(REGEX MATCHALL "WEIR_API[^;(]*[ \n*]weir_[a-z0-9_]+\\(" declared "${text}")
list(TRANSFORM declared REPLACE ".*[ \n*](weir_[a-z0-9_]+)\\($" "\\1")

list(LENGTH declared count)
if(count LESS 30)
  message(FATAL_ERROR "only ${count} functions found in ${HEADERS}: has its form changed?")
endif()
set(only_exported ${exported})
list(REMOVE_ITEM only_exported ${declared})
set(only_declared ${declared})
list(REMOVE_ITEM only_declared ${exported})
if(only_exported)
  message(SEND_ERROR "exported, but not declared in ${HEADERS}: ${only_exported}")
endif()
if(only_declared)
  message(SEND_ERROR "declared, but not exported: ${only_declared}")
endif()
message(STATUS "${count} functions declared, all exported and nothing else")
