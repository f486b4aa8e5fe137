// SPDX-License-Identifier: Apache-2.0
// Imports: maps what another process has exported (exports.h) in this one, for the device of the
// current context. No descriptor of the other process stays open here: the mapping alone keeps the
// memory.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/stream/exports.h"

namespace weir::comm {

struct Imported {
  cuda::DevicePointer pointer = 0;  // 0: there is none
  std::string reason;               // why not
  // What was mapped before a failure stays mapped: unmapping may wait for the device, which may be
  // waiting for this thread. The caller does not try again.
  bool is_stuck = false;
};

// `number`, `bytes`: as the owner told them; both are compared with its directory.
Imported import_memory(const cuda::Driver& driver, const ProcessNumber& owner, const ExportKey& key,
                       uint64_t number, uint64_t bytes);

}  // namespace weir::comm
