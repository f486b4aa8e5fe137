// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/exports.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/descriptors.h"

namespace weir::comm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// An exported allocation.
struct Piece {
  uint64_t number = 0;
  cuda::AllocationHandle handle = 0;  // kept
  uint64_t bytes = 0;
  uint64_t address = 0;  // where it was mapped when last seen
  OwnedDescriptor descriptor;
};

struct Exports {
  std::mutex lock;
  ProcessNumber process{};
  OwnedDescriptor book;
  uint64_t number_latest = 0;
  uint64_t let_go_bytes = 0;
  std::vector<Piece> pieces;
  // For each record: its own number and those of its pieces; empty where there is none.
  struct Record {
    uint64_t number = 0;
    std::vector<uint64_t> pieces;
  };
  std::vector<Record> records;
};

// Threads may use it until the process ends, which closes the descriptors: never destroyed.
Exports& exports() {
  static constinit PerProcess<Exports> it;
  return it.get();
}

void* pointer_of(uint64_t address) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(address));
}

off_t offset_of(size_t record) {
  return static_cast<off_t>(sizeof(BookHead) + record * sizeof(BookRecord));
}

template <typename Value>
bool write_at(const OwnedDescriptor& file, off_t offset, const Value& value) {
  return pwrite(file.get(), &value, sizeof value, offset) == static_cast<ssize_t>(sizeof value);
}

// Adjacent mapped allocations, as they are found; releases their handles.
class Run {
 public:
  struct Member {
    uint64_t base;
    uint64_t bytes;
    cuda::AllocationHandle handle;
    bool retained;
  };
  explicit Run(const cuda::Driver& driver) : driver_(driver) {}
  ~Run() {
    for (const Member& it : members) {
      if (it.retained) (void)driver_.cuMemRelease(it.handle);
    }
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
  members.push_back({base, bytes, handle, true});
  return Refusal::kNone;
}

bool is_mapped(const cuda::Driver& driver, const Piece& piece) {
  cuda::AllocationHandle handle = 0;
  if (driver.cuMemRetainAllocationHandle(&handle, pointer_of(piece.address)) != cuda::kSuccess) {
    return false;
  }
  (void)driver.cuMemRelease(handle);
  return handle == piece.handle;
}

// Releases what the program has unmapped. The record is cleared first: a process that took a
// descriptor and then finds the record unchanged has the right one.
void let_go(const cuda::Driver& driver, Exports& all) {
  auto gone = std::partition(all.pieces.begin(), all.pieces.end(),
                             [&](const Piece& it) { return is_mapped(driver, it); });
  for (auto piece = gone; piece != all.pieces.end(); ++piece) {
    for (size_t i = 0; i < all.records.size(); ++i) {
      Exports::Record& record = all.records[i];
      const auto& numbers = record.pieces;
      if (std::find(numbers.begin(), numbers.end(), piece->number) == numbers.end()) continue;
      (void)write_at(all.book, offset_of(i), uint64_t{0});
      record = {};
    }
    (void)driver.cuMemRelease(piece->handle);
    all.let_go_bytes += piece->bytes;
  }
  all.pieces.erase(gone, all.pieces.end());
}

// The piece of a member, old or new.
Refusal keep(const cuda::Driver& driver, Exports& all, Run::Member* member, uint64_t* number) {
  for (Piece& it : all.pieces) {
    if (it.handle != member->handle || it.bytes != member->bytes) continue;
    it.address = member->base;
    *number = it.number;
    return Refusal::kNone;
  }
  let_go(driver, all);
  if (all.let_go_bytes > kLetGoBytesMax) return Refusal::kLetGo;
  if (all.pieces.size() >= kExportedAllocationsMax) return Refusal::kFull;
  all.pieces.reserve(all.pieces.size() + 1);
  int descriptor = -1;
  if (driver.cuMemExportToShareableHandle(&descriptor, member->handle, cuda::kHandleDescriptor,
                                          0) != cuda::kSuccess) {
    return Refusal::kCuda;
  }
  Piece made;
  made.descriptor = OwnedDescriptor(descriptor);
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) return Refusal::kSystem;
  made.number = *number = ++all.number_latest;
  made.handle = member->handle;
  made.bytes = member->bytes;
  made.address = member->base;
  member->retained = false;
  all.pieces.push_back(std::move(made));
  return Refusal::kNone;
}

bool open_book(Exports& all) {
  OwnedDescriptor book(memfd_create("weir-exports", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  BookHead head;
  head.process = this_process();
  if (!book.ok() || ftruncate(book.get(), offset_of(kExportsMax)) != 0 ||
      fcntl(book.get(), F_ADD_SEALS, kSeals) != 0 || !write_at(book, 0, head)) {
    return false;
  }
  all.records.resize(kExportsMax);
  all.process = head.process;
  all.book = std::move(book);
  return true;
}

Refusal enter(Exports& all, std::vector<uint64_t> numbers, uint64_t bytes, Export* made) {
  auto record = std::find_if(all.records.begin(), all.records.end(),
                             [&](const auto& it) { return it.pieces == numbers; });
  if (record == all.records.end()) {
    record = std::find_if(all.records.begin(), all.records.end(),
                          [](const auto& it) { return it.number == 0; });
    if (record == all.records.end()) return Refusal::kFull;
    BookRecord entry;
    entry.number = all.number_latest + 1;
    entry.bytes = bytes;
    for (const uint64_t number : numbers) {
      const auto piece = std::find_if(all.pieces.begin(), all.pieces.end(),
                                      [&](const Piece& it) { return it.number == number; });
      // The program unmapped it meanwhile.
      if (piece == all.pieces.end()) return Refusal::kHole;
      entry.pieces[entry.piece_count++] = {piece->bytes, piece->descriptor.get(), 0};
    }
    if (!write_at(all.book, offset_of(static_cast<size_t>(record - all.records.begin())), entry)) {
      return Refusal::kSystem;
    }
    *record = {++all.number_latest, std::move(numbers)};
  }
  made->bytes = bytes;
  made->number = record->number;
  made->key = {getpid(), all.book.get(), static_cast<uint32_t>(record - all.records.begin()), 0};
  return Refusal::kNone;
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
    case Refusal::kFull:
      return fmt::format("its owner has exported {} allocations already, which is the limit",
                         kExportedAllocationsMax);
    case Refusal::kLetGo:
      return fmt::format(
          "its owner has unmapped {} MiB of exported memory that other processes may still hold, "
          "which is the limit",
          kLetGoBytesMax >> 20);
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

Refusal export_memory(const cuda::Driver& driver, uint64_t memory, uint64_t bytes, Export* made) {
  if (!driver.can_share_mapped()) return Refusal::kNoFunctions;
  Run run(driver);
  Refusal refusal = run.find(memory, bytes);
  if (refusal != Refusal::kNone) return refusal;
  Exports& all = exports();
  const std::lock_guard lock(all.lock);
  if (!all.book.ok() && !open_book(all)) return Refusal::kSystem;
  // A forked child has its parent's directory, and cannot use CUDA.
  if (all.process != this_process()) return Refusal::kUnknown;
  std::vector<uint64_t> numbers;
  uint64_t total_bytes = 0;
  for (Run::Member& it : run.members) {
    uint64_t number = 0;
    refusal = keep(driver, all, &it, &number);
    if (refusal != Refusal::kNone) return refusal;
    numbers.push_back(number);
    total_bytes += it.bytes;
  }
  made->base = run.members.front().base;
  return enter(all, std::move(numbers), total_bytes, made);
}

}  // namespace weir::comm
