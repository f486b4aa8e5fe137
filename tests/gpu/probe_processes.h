// SPDX-License-Identifier: Apache-2.0
// Experiments of driver_probe with two processes that use one device. Each forks before it opens
// the driver.
#pragma once

namespace weir::probe {

// They answer each other, and one opens the other's memory by CUDA's IPC.
void two_processes(const char* unused);
// The same with memory that is made by cuMemCreate and passes as a descriptor.
void two_processes_by_descriptor(const char* unused);

}  // namespace weir::probe
