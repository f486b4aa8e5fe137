// SPDX-License-Identifier: Apache-2.0
// The functions and the version of an opened library, and whether they suffice for a real NCCL. For
// the library itself and for weir-info doctor. Thread-safe.
#pragma once

#include <string>

#include "nccl/api/functions.h"

namespace weir::nccl {

struct RealFunctions {
  void* found[static_cast<unsigned>(FunctionIndex::kCount)] = {};  // nullptr: it lacks that one
  int version = 0;                                                 // as ncclGetVersion gives it

  void* of(FunctionIndex function) const { return found[static_cast<unsigned>(function)]; }
};

// False: the library does not suffice, and `reason` says why.
bool find_functions(void* library, RealFunctions* functions, std::string* reason);

// "2.28.9" of 22809; before 2.9 a major version was worth 1000.
inline std::string version_text(int version) {
  const int major_worth = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major_worth) + "." + std::to_string(version % major_worth / 100) +
         "." + std::to_string(version % 100);
}

}  // namespace weir::nccl
