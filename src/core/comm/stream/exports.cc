// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/exports.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace weir::comm {

namespace {

void* pointer_of(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

// Adjacent mapped allocations, as they are found; releases their handles.
class Run {
 public:
  struct Member {
    uint64_t base;
    uint64_t bytes;
    cuda::AllocationHandle handle;
  };
  explicit Run(const cuda::Driver& driver) : driver_(driver) {}
  ~Run() {
    for (const Member& it : members) (void)driver_.cuMemRelease(it.handle);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Refusal find(uint64_t memory, uint64_t bytes);
  std::vector<Member> members;

 private:
  Refusal add(uint64_t address);
  const cuda::Driver& driver_;
};

Refusal Run::find(uint64_t memory, uint64_t bytes) {
  if (bytes > UINT64_MAX - memory) return Refusal::kUnknown;
  uint64_t at = memory;
  do {
    if (members.size() == kPiecesMax) return Refusal::kPieces;
    const Refusal refusal = add(at);
    if (refusal != Refusal::kNone) return members.empty() ? refusal : Refusal::kHole;
    at = members.back().base + members.back().bytes;
  } while (at < memory + bytes);
  return Refusal::kNone;
}

Refusal Run::add(uint64_t address) {
  cuda::DevicePointer base = 0;
  size_t bytes = 0;
  unsigned long long handles = 0;
  void* pool = nullptr;
  int attributes[] = {cuda::kAttributeAllowedHandles, cuda::kAttributePool};
  void* data[] = {&handles, &pool};
  // The attributes give the reserved range; this call gives the part of it that is mapped here.
  if (driver_.cuMemGetAddressRange_v2(&base, &bytes, address) != cuda::kSuccess ||
      driver_.cuPointerGetAttributes(2, attributes, data, address) != cuda::kSuccess) {
    return Refusal::kUnknown;
  }
  if (base > address || address - base >= bytes || bytes > UINT64_MAX - base) {
    return Refusal::kUnknown;
  }
  // An allocation from a pool is only a part of what the handle refers to.
  if (pool != nullptr) return Refusal::kPool;
  if ((handles & cuda::kHandleDescriptor) == 0) return Refusal::kNotExportable;
  members.reserve(members.size() + 1);  // so that a lack of memory loses nothing
  cuda::AllocationHandle handle = 0;
  if (driver_.cuMemRetainAllocationHandle(&handle, pointer_of(base)) != cuda::kSuccess) {
    return Refusal::kUnknown;
  }
  members.push_back({base, bytes, handle});
  return Refusal::kNone;
}

bool write_list(const std::vector<Run::Member>& members, OwnedDescriptor* list) {
  std::vector<uint64_t> words = {kPiecesMagic, members.size()};
  for (const Run::Member& it : members) words.push_back(it.bytes);
  const auto bytes = static_cast<ssize_t>(words.size() * sizeof words[0]);
  *list = OwnedDescriptor(memfd_create("weir-pieces", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  return list->ok() && write(list->get(), words.data(), static_cast<size_t>(bytes)) == bytes &&
         fcntl(list->get(), F_ADD_SEALS,
               F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0;
}

}  // namespace

std::string text_of(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNoFunctions:
      return "CUDA IPC does not support it, and its owner's CUDA has no functions for other memory";
    case Refusal::kPool:
      return "it belongs to a memory pool";
    case Refusal::kNotExportable:
      return "CUDA IPC does not support it, and it was made without "
             "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (cuMemCreate, requestedHandleTypes)";
    case Refusal::kHole:
      return "it is only partly mapped, or continues in memory of another kind";
    case Refusal::kPieces:
      return fmt::format("it lies in more than {} allocations", kPiecesMax);
    case Refusal::kSystem:
      return "its owner is out of file descriptors (raise ulimit -n)";
    case Refusal::kCuda:
      return "its owner's CUDA does not export it";
    case Refusal::kNone:
    case Refusal::kUnknown:
      break;
  }
  return "its owner cannot share it";
}

Refusal export_memory(const cuda::Driver& driver, uint64_t memory, uint64_t bytes, Exported* made) {
  if (!driver.can_share_mapped()) return Refusal::kNoFunctions;
  Run run(driver);
  if (const Refusal refusal = run.find(memory, bytes); refusal != Refusal::kNone) return refusal;
  for (const Run::Member& it : run.members) {
    int descriptor = -1;
    if (driver.cuMemExportToShareableHandle(&descriptor, it.handle, cuda::kHandleDescriptor, 0) !=
        cuda::kSuccess) {
      return Refusal::kCuda;
    }
    made->pieces.emplace_back(descriptor);
    if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) return Refusal::kSystem;
    made->bytes += it.bytes;
  }
  made->base = run.members.front().base;
  return write_list(run.members, &made->list) ? Refusal::kNone : Refusal::kSystem;
}

}  // namespace weir::comm
