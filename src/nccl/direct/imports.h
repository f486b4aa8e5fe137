// SPDX-License-Identifier: Apache-2.0
// Imports: what another process has exported (exports.h), mapped in this one for the device of the current
// context. Nothing of the other process's stays open here: the mapping alone keeps the memory.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "nccl/direct/exports.h"

namespace weir::nccl {

struct Imported {
  cuda::DevicePointer pointer = 0;  // 0: there is none
  std::string reason;               // why not
  // What has been mapped before something failed stays: to unmap it may wait for the device, which may be
  // waiting for us. The caller does not try again.
  bool is_stuck = false;
};

// `number`, `bytes`: as the owner told them; all is compared with its book.
Imported import_memory(const cuda::Driver& driver, const ProcessNumber& owner, const ExportKey& key,
                       uint64_t number, uint64_t bytes);

}  // namespace weir::nccl
