# SPDX-License-Identifier: Apache-2.0
# weir_find_pytorch(): asks the interpreter WEIR_PYTHON for its PyTorch. Sets in the caller
#   WEIR_PYTORCH_VERSION, WEIR_PYTORCH_INCLUDES, WEIR_PYTORCH_LIBRARIES, WEIR_PYTORCH_CXX11_ABI,
#   WEIR_PYTHON_SUFFIX   (the ending of the file names of extension modules)
# or WEIR_PYTORCH_MISSING, the reason why there is none.

function(weir_find_pytorch)
  set(WEIR_PYTHON "" CACHE FILEPATH
    "Python whose PyTorch the package `weir` is built for; empty: build/pytorch's, or python3")
  set(python "${WEIR_PYTHON}")
  if(NOT python AND EXISTS ${PROJECT_SOURCE_DIR}/build/pytorch/bin/python3)
    set(python ${PROJECT_SOURCE_DIR}/build/pytorch/bin/python3)
  elseif(NOT python)
    set(python python3)
  endif()
  execute_process(
    COMMAND ${python} -c "
import sysconfig, torch
from torch.utils.cpp_extension import include_paths, library_paths
print(torch.__version__)
print(';'.join([*include_paths(), sysconfig.get_paths()['include']]))
print(';'.join(library_paths()))
print(int(torch.compiled_with_cxx11_abi()))
print(sysconfig.get_config_var('EXT_SUFFIX'))"
    OUTPUT_VARIABLE answer RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(failed)
    set(WEIR_PYTORCH_VERSION "" PARENT_SCOPE)
    set(WEIR_PYTORCH_MISSING "${python} has no PyTorch: tools/setup --for pytorch, or WEIR_PYTHON"
      PARENT_SCOPE)
    return()
  endif()
  string(REPLACE ";" "\\;" answer "${answer}")
  string(REPLACE "\n" ";" answer "${answer}")
  list(GET answer 0 version)
  list(GET answer 1 includes)
  list(GET answer 2 libraries)
  list(GET answer 3 abi)
  list(GET answer 4 suffix)
  set(WEIR_PYTORCH_VERSION "${version}" PARENT_SCOPE)
  set(WEIR_PYTORCH_INCLUDES "${includes}" PARENT_SCOPE)
  set(WEIR_PYTORCH_LIBRARIES "${libraries}" PARENT_SCOPE)
  set(WEIR_PYTORCH_CXX11_ABI "${abi}" PARENT_SCOPE)
  set(WEIR_PYTHON_SUFFIX "${suffix}" PARENT_SCOPE)
  set(WEIR_PYTORCH_PYTHON "${python}" PARENT_SCOPE)
endfunction()
