// SPDX-License-Identifier: Apache-2.0
// Reach: how a rank comes to another's memory of a device. In one process an address is an address;
// between processes of a machine CUDA hands allocations over: what cuMemAlloc gave through CUDA IPC, what
// was made by mapping as descriptors (exports.h). They are mapped once and kept until the process ends: to
// close a mapping may wait for the device, which may be waiting for us.
//
// What a peer tells is looked at before it is used: a range must lie in the allocation that it names.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "nccl/cuda/driver.h"
#include "nccl/process.h"

namespace weir::nccl {

// Mappings that a process holds at most; further ones are refused.
inline constexpr size_t kMappingsMax = 512;

// Memory of a device as others find it. Crosses the wire.
struct DeviceRange {
  uint64_t address = 0;     // in its owner's process
  uint64_t base = 0;        // of the allocation, or of the first of those that it spans
  uint64_t bytes = 0;       // of the allocation or of all of them
  uint64_t allocation = 0;  // its number, which its process gives once for each way
  uint32_t shared = 0;      // kSharedNot or the way
  uint32_t refusal = 0;     // a Refusal: why not
  cuda::IpcHandle handle;   // or an ExportKey at its beginning
};
inline constexpr uint32_t kSharedNot = 0;
inline constexpr uint32_t kSharedByIpc = 1;
inline constexpr uint32_t kSharedByExport = 2;

// `for_others`: other processes are to reach `bytes` of it, too; `shared` tells whether they may. Memory that
// was made by mapping may go on over several allocations; else it ends with the one that `memory` lies in.
DeviceRange range_of(const cuda::Driver& driver, const void* memory, bool for_others,
                     uint64_t bytes);

struct Reached {
  char* address = nullptr;  // nullptr: it cannot be reached
  std::string reason;       // why not
};

// `bytes` from the range's address on, for the device of the current context.
Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes);

// The same for kernels, which reach less: memory of another device of this process must be of a kind,
// and on a device, to which the context may be given access; what was made by mapping must have been given
// to this device by the program.
Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes);

}  // namespace weir::nccl
