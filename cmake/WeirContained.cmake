# SPDX-License-Identifier: Apache-2.0
# What leaves the project as a library (libnccl.so.2, libweir.so, the modules) needs nothing but the
# C library, so that it loads on every distribution, and beside whatever fmt or OpenSSL a program
# has: it holds the libraries below inside, under names that no other library sees. Programs and
# tests, of which there are hundreds, are linked with the system's shared libraries. Both are made
# of the same objects.

# weir_contained(TARGET…)
# For a shared library or module whose version script hides all but its own names, and for a
# program.
function(weir_contained)
  if(NOT WEIR_HAVE_ARCHIVES)
    return()
  endif()
  set_target_properties(${ARGN} PROPERTIES WEIR_CONTAINED ON)
  foreach(target IN LISTS ARGN)
    # Objects refer to __cxa_pure_virtual weakly, which takes nothing from an archive.
    target_link_options(${target} PRIVATE
      -static-libstdc++ -static-libgcc -Wl,--undefined=__cxa_pure_virtual)
    target_link_libraries(${target} PRIVATE weir_bundled_newer_glibc)
  endforeach()
endfunction()

# weir_two_ways(TARGET SHARED library… CONTAINED library…)
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

# weir_find_archives(OUT LIBRARY…)
# The static libraries beside shared ones, which are paths. WEIR_MISSING_ARCHIVES gets the names of
# those that do not exist.
set(WEIR_MISSING_ARCHIVES "")
function(weir_find_archives out)
  set(found "")
  foreach(library IN LISTS ARGN)
    cmake_path(REPLACE_EXTENSION library LAST_ONLY a)
    list(APPEND found ${library})
    if(NOT EXISTS ${library})
      cmake_path(GET library FILENAME name)
      list(APPEND WEIR_MISSING_ARCHIVES ${name})
    endif()
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
  set(WEIR_MISSING_ARCHIVES ${WEIR_MISSING_ARCHIVES} PARENT_SCOPE)
endfunction()

# GCC's own, which it finds itself.
foreach(archive libstdc++.a libgcc_eh.a)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${archive}
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT IS_ABSOLUTE "${path}")
    list(APPEND WEIR_MISSING_ARCHIVES ${archive})
  endif()
endforeach()
