# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=nm -DOBJDUMP=objdump -DLIBRARY=libnccl-net-weir.so -P exported_symbols.cmake
# The library exports the five tables and nothing else, under its own name.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
  OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${NM} cannot read ${LIBRARY}")
endif()
string(REGEX MATCHALL "(^|\n)[^ \n]+" exported "${symbols}")
list(TRANSFORM exported STRIP)
list(FILTER exported EXCLUDE REGEX "^(_init|_fini|_edata|_end|__bss_start)$")
list(SORT exported COMPARE NATURAL)
set(expected ncclNetPlugin_v8 ncclNetPlugin_v9 ncclNetPlugin_v10 ncclNetPlugin_v11
  ncclNetPlugin_v12)
if(NOT exported STREQUAL expected)
  message(FATAL_ERROR "exported: ${exported}\nexpected: ${expected}")
endif()
execute_process(COMMAND ${OBJDUMP} -p ${LIBRARY} OUTPUT_VARIABLE header RESULT_VARIABLE failed)
if(failed OR NOT header MATCHES "SONAME +libnccl-net-weir\\.so\n")
  message(FATAL_ERROR "the library's SONAME is not libnccl-net-weir.so")
endif()
