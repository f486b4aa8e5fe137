// SPDX-License-Identifier: Apache-2.0
// Which libnccl.so.2 a program gets, and why. The program's own loader is asked, as ldd does: the program does
// not run, but its loader does, so ask only about programs that you would run.
//
// Source: ld.so(8) for the order: LD_PRELOAD, RPATH of what asks, LD_LIBRARY_PATH, its RUNPATH, the cache, default folders.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir::info {

inline constexpr const char* kNcclName = "libnccl.so.2";

// Symbols that `object` wants of libnccl.so.2 and does not find there.
struct MissingSymbols {
  std::string object;
  std::vector<std::string> names;
};

struct Loading {
  std::string object;  // the program or library that was asked about, absolute
  bool linked =
      false;  // it needs libnccl.so.2 itself, or what it needs does; else what dlopen by that name finds
  std::string path;    // of the library; "" when there is none
  std::string reason;  // "LD_PRELOAD names it"; or why there is none
  std::vector<MissingSymbols> missing;
  std::vector<std::string> wanted;  // the symbols of NCCL that it and what it needs ask for
  std::vector<std::string>
      not_found;  // libraries, other than that one, without which it does not start
};

// `program`: a path, or a name that is looked for on PATH; a script stands for what its first line names.
Result<std::string> find_program(const std::string& program);

// `object`: an absolute path of a program or a library.
Result<Loading> nccl_of(const std::string& object);

// The library `name` that is loaded with `object` when it starts, "" when none is.
std::string path_linked(const std::string& object, const std::string& name);

// Where the loader of `object` (by its own path: /proc/self is another process there) finds the library `name` by that
// name, "" when it does not.
std::string path_by_name(const std::string& object, const std::string& name);

// What a Python interpreter finds in its packages, "" for what it has not.
struct PythonPackages {
  std::string torch;  // …/torch/lib/libtorch_cuda.so, which needs libnccl.so.2
  std::string nccl;   // …/nvidia/nccl/lib/libnccl.so.2
};
bool is_python(const std::string& program);
// As find_program; a script by that name, such as those of version managers, is asked for the interpreter behind it.
Result<std::string> interpreter_of_python(const std::string& program);
PythonPackages packages_of_python(const std::string& program);

// What ncclGetVersion of the library answers (22809), in a process of its own; 0 when it does not load. Weir's answers
// for itself, not for a real NCCL behind it.
int nccl_version_of(const std::string& library);

}  // namespace weir::info
