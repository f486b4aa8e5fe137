# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=nm -DLIBRARY=libcudart.so.13 -DLIST=symbols.txt -DVERSION=libcudart.so.13 -P
# exported_symbols.cmake The library exports the functions of the list and nothing else, each with
# the symbol version, if one is given.

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL " [TWi] [^\n]+" rows "${symbols}")
list(TRANSFORM rows REPLACE "^ [TWi] " "" OUTPUT_VARIABLE exported)

file(STRINGS ${LIST} listed REGEX "^[a-z_]")
list(LENGTH listed count)
if(count LESS 100)
  message(FATAL_ERROR "only ${count} names in ${LIST}: has its form changed?")
endif()
if(VERSION)
  list(TRANSFORM listed APPEND "@@${VERSION}")
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
