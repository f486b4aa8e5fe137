// SPDX-License-Identifier: Apache-2.0
// Which libnccl.so.2 a program gets, and why. As in ldd, the program's own loader tells: the
// program does not run, but its loader does, so examine only programs that you would run.
//
// Source: ld.so(8) for the order: LD_PRELOAD, RPATH of the requesting object, LD_LIBRARY_PATH, its
// RUNPATH, the cache, default folders.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir::info {

inline constexpr const char* kNcclName = "libnccl.so.2";
inline constexpr const char* kReasonOfPreload = "LD_PRELOAD names it";

// Symbols that `object` needs from libnccl.so.2 and does not find there.
struct MissingSymbols {
  std::string object;
  std::vector<std::string> names;
};

struct Loading {
  std::string object;  // the examined program or library, absolute
  bool linked =
      false;  // it or a library it needs is linked with libnccl.so.2; else what dlopen by that name
              // finds
  std::string path;    // of the library; "" when there is none
  std::string reason;  // "LD_PRELOAD names it"; or why there is none
  std::vector<MissingSymbols> missing;
  std::vector<std::string> wanted;  // the symbols of NCCL that it and its libraries refer to
  std::vector<std::string>
      not_found;  // libraries, other than that one, without which it does not start
};

// `program`: a path, or a name that is searched for on PATH; for a script, the program that its
// first line names; for a Python source without such a line, python3.
Result<std::string> find_program(const std::string& program);

// `object`: an absolute path of a program or a library.
Result<Loading> nccl_of(const std::string& object);

// Whether a file is this project's libnccl.so.2, or a stand-in of it for a library of CUDA.
bool is_weirs(const std::string& library);

// The library `name` that is loaded with `object` when it starts, "" when none is.
std::string path_linked(const std::string& object, const std::string& name);

// Where the loader of `object` finds the library `name` by that name, "" when it does not. `object`
// is a real path: in the loader's process /proc/self is the loader.
std::string path_by_name(const std::string& object, const std::string& name);

bool is_python(const std::string& program);
// Like find_program; a script by that name, such as those of version managers, is run to get its
// interpreter.
Result<std::string> interpreter_of_python(const std::string& program);

// The result of the library's ncclGetVersion (22809), called in a separate process; 0 when it does
// not load. Weir's library gives its own version, not that of a real NCCL behind it.
int nccl_version_of(const std::string& library);

}  // namespace weir::info
