// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as the transport uses it. Looking for it does not start it. Thread-safe.
#pragma once

#include <string>

#include "cuda/driver_table.h"

namespace weir::plugins::nccl {

using cuda::Driver;

// CUDA's name of an error.
std::string name_of(const Driver& driver, int error);

// nullptr: `reason` says what is missing.
const Driver* driver(std::string* reason);

// Makes a context the thread's current one and allows calls that the capture of a stream by any
// thread otherwise forbids, for as long as it lives.
class DriverScope {
 public:
  DriverScope(const Driver& driver, void* context);
  ~DriverScope();
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;

 private:
  const Driver& driver_;
  int mode_;
  bool exchanged_ = false;
  bool pushed_ = false;
};

}  // namespace weir::plugins::nccl
