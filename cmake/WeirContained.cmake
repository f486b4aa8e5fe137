# SPDX-License-Identifier: Apache-2.0
# What leaves the project as a library (libnccl.so.2, libweir.so, the modules) needs nothing but the
# C library, so that it loads on every distribution, and beside whatever fmt or OpenSSL a program
# has: it holds the libraries below inside, under names that no other library sees. Programs and
# tests, of which there are hundreds, are linked with the system's shared libraries. Both are made
# of the same objects.

# What keeps them from it: archives that were not found.
set(WEIR_MISSING_ARCHIVES "")
foreach(archive libstdc++.a libgcc_eh.a)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${archive}
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${path}")
    list(APPEND WEIR_MISSING_ARCHIVES ${archive})
  endif()
endforeach()
set(WEIR_STATIC_RUNTIME ON)
if(WEIR_MISSING_ARCHIVES)
  set(WEIR_STATIC_RUNTIME OFF)
endif()

# weir_contained(TARGET…)
# For a shared library or module whose version script hides all but its own names.
function(weir_contained)
  if(WEIR_SANITIZE)
    return()  # a sanitizer's runtime replaces functions of the shared libstdc++
  endif()
  set_target_properties(${ARGN} PROPERTIES WEIR_CONTAINED ON)
  if(NOT WEIR_STATIC_RUNTIME)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    # Objects refer to __cxa_pure_virtual weakly, which takes nothing from an archive.
    target_link_options(${target} PRIVATE
      -static-libstdc++ -static-libgcc -Wl,--undefined=__cxa_pure_virtual)
    target_link_libraries(${target} PRIVATE weir_bundled_newer_glibc)
  endforeach()
endfunction()

# weir_two_ways(TARGET SHARED library… [CONTAINED library…])
# What those link that depend on the imported TARGET: SHARED, or CONTAINED for weir_contained().
function(weir_two_ways target)
  cmake_parse_arguments(ARG "" "" "SHARED;CONTAINED" ${ARGN})
  set(contained "$<BOOL:$<TARGET_PROPERTY:WEIR_CONTAINED>>")
  set(libraries "")
  foreach(library IN LISTS ARG_SHARED)
    list(APPEND libraries "$<$<NOT:${contained}>:${library}>")
  endforeach()
  foreach(library IN LISTS ARG_CONTAINED)
    list(APPEND libraries "$<${contained}:${library}>")
  endforeach()
  set_target_properties(${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${libraries}")
endfunction()

# weir_find_archive(OUT SHARED)
# The static library beside the shared one; the shared one where there is none.
function(weir_find_archive out shared)
  cmake_path(REPLACE_EXTENSION shared LAST_ONLY a OUTPUT_VARIABLE archive)
  if(NOT EXISTS ${archive})
    cmake_path(GET archive FILENAME name)
    list(APPEND WEIR_MISSING_ARCHIVES ${name})
    set(WEIR_MISSING_ARCHIVES ${WEIR_MISSING_ARCHIVES} PARENT_SCOPE)
    set(archive ${shared})
  endif()
  set(${out} ${archive} PARENT_SCOPE)
endfunction()
