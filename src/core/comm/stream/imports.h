// SPDX-License-Identifier: Apache-2.0
// Imports: maps what another process has exported (exports.h) in this one, for the device of the
// current context. The mapping alone keeps the memory: no descriptor is needed any more.
//
// May wait for the device. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/stream/exports.h"

namespace weir::comm {

// The lengths that the file lists, which must have `count` of them with the sum `bytes`; empty: it
// is another file.
std::vector<uint64_t> read_pieces(const OwnedDescriptor& list, uint32_t count, uint64_t bytes);

struct Imported {
  cuda::DevicePointer pointer = 0;  // 0: there is none
  std::string reason;               // why not
};

// Side by side, in order. `bytes`: of all.
Imported import_memory(const cuda::Driver& driver, const std::vector<uint64_t>& lengths,
                       const std::vector<OwnedDescriptor>& pieces, uint64_t bytes);
void end_import(const cuda::Driver& driver, cuda::DevicePointer pointer, uint64_t bytes);

}  // namespace weir::comm
