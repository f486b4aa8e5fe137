// SPDX-License-Identifier: Apache-2.0
// Whether a buffer is memory of a CUDA device. The driver is never linked: a process that has
// device memory has loaded libcuda.so.1, or CUDA's runtime. Thread-safe.
#pragma once

#include <atomic>
#include <string>

namespace weir::comm {

namespace device_memory {
extern std::atomic<bool> known;
}

// The process is known to use CUDA's driver; costs a load.
inline bool driver_is_known() { return device_memory::known.load(std::memory_order_acquire); }

// Looks for the driver. Cheap when nothing has been loaded since the last look, but not for every
// call. Does not hang in a child of fork(), whatever other threads of the parent did in the loader.
bool look_for_driver();

// The same, but does not look again within a few microseconds of the last look, in which no program
// loads the driver and allocates memory with it. For every call.
bool look_again_for_driver();

// The number of the device if only it can access the memory at `pointer`; -1: the host can read it,
// too (managed and pinned memory), or there is no driver. Asks the driver.
int device_of_memory(const void* pointer);

// Whether memory that is on no device, as `device_of_memory` says, is none of the host either: it
// was freed, or nothing is mapped there. Never of memory that the host can read. Costs a call to
// the kernel.
bool is_no_memory(const void* pointer);

// Why a call may not use all of the memory (cuda::Driver::fault_of); "" where it may, and where
// that is not known.
std::string fault_of_memory(const void* memory, size_t bytes, bool writes);

// The device of the context that is current in this thread; -1: there is none, or no driver is
// known.
int current_device();

// cuda::told_device; "" also where no driver is known.
std::string told_device(int device);

}  // namespace weir::comm
