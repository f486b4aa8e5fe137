// SPDX-License-Identifier: Apache-2.0
// Python packages that load libnccl.so.2, and the file that each of them really gets. Where a
// virtual environment has NCCL as a wheel, most of them load the wheel's file whatever
// LD_LIBRARY_PATH says.
//
// Sources: the RPATH of PyTorch's and JAX's libraries; the search orders of cuda-pathfinder
// (nccl4py) and of CuPy, which open the wheel's file by its path unless a library of that name is
// loaded already.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "weir_info/loading.h"

namespace weir::info {

// How a package gets libnccl.so.2.
enum class PythonLoads {
  kByLoader,     // it is linked to it, or opens it by name
  kWheelByPath,  // it opens the wheel's file first
};

struct PythonClient {
  std::string name;    // "PyTorch"
  std::string object;  // its library that needs libnccl.so.2
  PythonLoads loads = PythonLoads::kByLoader;
};

// What a Python interpreter finds in its packages.
struct PythonPackages {
  std::vector<PythonClient> clients;
  std::string nccl;  // the wheel's …/nvidia/nccl/lib/libnccl.so.2; "" when there is none
};

// `program`: the interpreter, which runs to tell its folders.
PythonPackages packages_of_python(const std::string& program);

// The library that a client gets with the environment of this process.
Result<Loading> nccl_of(const PythonClient& client, const std::string& wheel);

// A library of Weir's that LD_LIBRARY_PATH names and that an object does not get.
struct Shadowed {
  std::string wanted;  // the file that LD_LIBRARY_PATH names
  std::string loaded;  // the one that is loaded instead
};

// libnccl.so.2 of `loading`, and the stand-ins for CUDA of which its object needs others.
std::vector<Shadowed> shadowed_by(const Loading& loading);

}  // namespace weir::info
