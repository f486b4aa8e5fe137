// SPDX-License-Identifier: Apache-2.0
// Reach: how a rank gets access to another rank's device memory. Within one process the address is
// enough. Between processes of a machine CUDA shares allocations: those of cuMemAlloc by CUDA IPC,
// those made by mapping as descriptors (exports.h). They are mapped once and kept until the process
// ends: closing a mapping may wait for the device, which may be waiting for this thread.
//
// What a peer tells is checked before it is used: a range must lie in the allocation that it names.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/process_number.h"
#include "cuda/driver.h"

namespace weir::comm {

// Limit of the mappings that a process holds.
inline constexpr size_t kMappingsMax = 512;

// Memory of a device as other ranks find it. Crosses the wire.
struct DeviceRange {
  uint64_t address = 0;     // in its owner's process
  uint64_t base = 0;        // of the allocation, or of the first of those that it spans
  uint64_t bytes = 0;       // of the allocation or of all of them
  uint64_t allocation = 0;  // its number, unique in its process for each method
  uint32_t shared = 0;      // kSharedNot or the method
  uint32_t refusal = 0;     // a Refusal: why not
  cuda::IpcHandle handle;   // or an ExportKey at its beginning
};
inline constexpr uint32_t kSharedNot = 0;
inline constexpr uint32_t kSharedByIpc = 1;
inline constexpr uint32_t kSharedByExport = 2;

// `for_others`: other processes need access to `bytes` of it, too; `shared` says whether they have
// it. Memory that was made by mapping may span several allocations; other memory ends with the
// allocation that `memory` lies in.
DeviceRange range_of(const cuda::Driver& driver, const void* memory, bool for_others,
                     uint64_t bytes);

struct Reached {
  char* address = nullptr;  // nullptr: it cannot be reached
  std::string reason;       // why not
};

// `bytes` from the range's address on, for the device of the current context.
Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes);

// The same for kernels, which have less access: memory of another device of this process must be of
// a kind, and on a device, that the context can be given access to; for memory that was made by
// mapping the program must have granted it.
Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes);

}  // namespace weir::comm
