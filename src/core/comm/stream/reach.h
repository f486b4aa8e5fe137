// SPDX-License-Identifier: Apache-2.0
// Reach: how a rank gets access to another rank's device memory. Within one process the address is
// enough. Between processes of a machine CUDA shares allocations: those of cuMemAlloc by CUDA IPC,
// those made by mapping as descriptors (exports.h), which their owner offers in the control network
// of a communicator of both. An allocation is mapped once, by its number, and as long as it has
// users. To map memory and to end a mapping may wait for the device.
//
// What a peer tells is checked before it is used: a range must lie in the allocation that it names.
// Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/process_number.h"
#include "core/control/network.h"
#include "cuda/driver.h"

namespace weir::comm {

// Limit of the mappings that a process holds.
inline constexpr size_t kMappingsMax = 512;

// Memory of a device as other ranks find it. Crosses the wire.
struct DeviceRange {
  uint64_t address = 0;      // in its owner's process
  uint64_t base = 0;         // of the allocation, or of the first of those that it spans
  uint64_t bytes = 0;        // of the allocation or of all of them
  uint64_t allocation = 0;   // its number, unique in its process for each method
  uint32_t shared = 0;       // kSharedNot or the method
  uint32_t refusal = 0;      // a Refusal: why not
  uint32_t piece_count = 0;  // by descriptors: of the allocations
  uint32_t zero = 0;
  cuda::IpcHandle handle;  // or, at its beginning, the key of the descriptors
};
inline constexpr uint32_t kSharedNot = 0;
inline constexpr uint32_t kSharedByIpc = 1;
inline constexpr uint32_t kSharedByDescriptors = 2;

// Descriptors that other ranks may fetch, as long as this object lives. Not thread-safe.
class Offers {
 public:
  using Key = control::Network::Key;

  // The network outlives this object; nullptr: there is no other rank.
  explicit Offers(control::Network* network) : network_(network) {}
  ~Offers() { withdraw(); }
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  Status add(const Key& key, int descriptor);
  void withdraw();

 private:
  control::Network* network_;
  std::vector<Key> keys_;
};
// Of descriptor `index` of an export.
Offers::Key key_of(const Offers::Key& first, uint32_t index);

// Where other processes need access to `bytes` of it, too, `offers` is where they find its
// descriptors, and `shared` says whether they have access; else nullptr. Memory that was made by
// mapping may span several allocations; other memory ends with the allocation that `memory` lies
// in. `number`: of memory that was made by mapping, of next_number; the same as long as it is the
// same memory.
DeviceRange range_of(const cuda::Driver& driver, const void* memory, uint64_t bytes, Offers* offers,
                     uint64_t number);
uint64_t next_number();

struct Reached {
  char* address = nullptr;  // nullptr: it cannot be reached
  std::string reason;       // why not
};

// Gets a descriptor that the owner offers.
using FetchDescriptor = std::function<Result<int>(const Offers::Key& key)>;
// From `owner`, within ten seconds for each descriptor. The network outlives it.
FetchDescriptor fetch_from(control::Network* network, Rank owner);

// `bytes` from the range's address on, for the device of the current context: a user more of the
// mapping, where there is one.
Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes, const FetchDescriptor& fetch);
// A user less; the last one ends the mapping. The same context is current.
void leave(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range);

// The same as `reach` for kernels, which have less access: memory of another device of this process
// must be of a kind, and on a device, that the context can be given access to; for memory that was
// made by mapping its owner must have granted it.
Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes, const FetchDescriptor& fetch);

}  // namespace weir::comm
