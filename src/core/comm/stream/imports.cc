// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/imports.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "core/comm/stream/cuda_error.h"
#include "core/comm/stream/descriptors.h"

namespace weir::comm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr const char* kTakenBack = "its owner has unmapped it since";

template <typename Value>
bool read_at(const OwnedDescriptor& file, off_t offset, Value* value) {
  return pread(file.get(), value, sizeof *value, offset) == static_cast<ssize_t>(sizeof *value);
}

// From another process: the descriptor may be of any file, which is not read before it is known to
// be memory.
bool is_book(const OwnedDescriptor& file, const ProcessNumber& owner) {
  struct stat facts {};
  BookHead head{};
  return fstat(file.get(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         fcntl(file.get(), F_GET_SEALS) == kSeals && read_at(file, 0, &head) &&
         head.magic == kBookMagic && head.process == owner;
}

bool is_whole(const BookRecord& record, uint64_t number, uint64_t bytes) {
  if (record.number != number || record.bytes != bytes || record.piece_count == 0 ||
      record.piece_count > kPiecesMax) {
    return false;
  }
  uint64_t total_bytes = 0;
  for (uint32_t i = 0; i < record.piece_count; ++i) {
    const BookPiece& piece = record.pieces[i];
    if (piece.bytes == 0 || piece.bytes > bytes - total_bytes || piece.descriptor < 0) return false;
    total_bytes += piece.bytes;
  }
  return total_bytes == bytes;
}

// Imported handles; a mapping does not need them.
class Handles {
 public:
  explicit Handles(const cuda::Driver& driver) : driver_(driver) {}
  ~Handles() {
    for (const cuda::AllocationHandle it : all) (void)driver_.cuMemRelease(it);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  std::vector<cuda::AllocationHandle> all;

 private:
  const cuda::Driver& driver_;
};

std::string failed(const cuda::Driver& driver, const char* call, cuda::Result result) {
  return cuda_failed(driver, "memory by mapping", call, result).text();
}

// The descriptors of a record's pieces, as handles.
bool take_all(const cuda::Driver& driver, const OtherProcess& process, const BookRecord& record,
              Handles* handles, std::string* reason) {
  handles->all.reserve(record.piece_count);
  for (uint32_t i = 0; i < record.piece_count; ++i) {
    const OwnedDescriptor piece = process.take(record.pieces[i].descriptor, reason);
    if (!piece.ok()) return false;
    cuda::AllocationHandle handle = 0;
    const cuda::Result result = driver.cuMemImportFromShareableHandle(
        &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(piece.get())),
        cuda::kHandleDescriptor);
    if (result != cuda::kSuccess) {
      *reason = failed(driver, "cuMemImportFromShareableHandle", result);
      return false;
    }
    handles->all.push_back(handle);
  }
  return true;
}

// Maps them next to each other, in order.
Imported map_all(const cuda::Driver& driver, const BookRecord& record, const Handles& handles) {
  Imported it;
  cuda::MemoryAccess access;
  access.location.type = cuda::kLocationDevice;
  access.flags = cuda::kAccessReadWrite;
  cuda::Result result = driver.cuCtxGetDevice(&access.location.id);
  if (result != cuda::kSuccess) {
    it.reason = failed(driver, "cuCtxGetDevice", result);
    return it;
  }
  cuda::DevicePointer base = 0;
  result = driver.cuMemAddressReserve(&base, record.bytes, 0, 0, 0);
  if (result != cuda::kSuccess) {
    it.reason = failed(driver, "cuMemAddressReserve", result);
    return it;
  }
  uint64_t offset = 0;
  for (uint32_t i = 0; i < record.piece_count; ++i) {
    const uint64_t bytes = record.pieces[i].bytes;
    result = driver.cuMemMap(base + offset, bytes, 0, handles.all[i], 0);
    if (result != cuda::kSuccess) {
      it.reason = failed(driver, "cuMemMap", result);
      it.is_stuck = i > 0;
      if (!it.is_stuck) (void)driver.cuMemAddressFree(base, record.bytes);
      return it;
    }
    offset += bytes;
  }
  result = driver.cuMemSetAccess(base, record.bytes, &access, 1);
  if (result != cuda::kSuccess) {
    it.reason = failed(driver, "cuMemSetAccess", result);
    it.is_stuck = true;
    return it;
  }
  it.pointer = base;
  return it;
}

}  // namespace

Imported import_memory(const cuda::Driver& driver, const ProcessNumber& owner, const ExportKey& key,
                       uint64_t number, uint64_t bytes) {
  Imported it;
  if (!driver.can_share_mapped()) {
    it.reason = "this CUDA has no functions for memory by mapping";
    return it;
  }
  if (number == 0 || key.process <= 0 || key.book < 0 || key.record >= kExportsMax) {
    it.reason = "the description that its owner sent is invalid";
    return it;
  }
  const OtherProcess process(key.process, &it.reason);
  if (!process.ok()) return it;
  const OwnedDescriptor book = process.take(key.book, &it.reason);
  if (!book.ok()) return it;
  if (!is_book(book, owner)) {
    it.reason = fmt::format(
        "process {} is a different process here: containers must share one view of processes "
        "(--pid=host)",
        key.process);
    return it;
  }
  const auto offset =
      static_cast<off_t>(sizeof(BookHead) + size_t{key.record} * sizeof(BookRecord));
  BookRecord record{};
  if (!read_at(book, offset, &record) || !is_whole(record, number, bytes)) {
    it.reason = kTakenBack;
    return it;
  }
  Handles handles(driver);
  if (!take_all(driver, process, record, &handles, &it.reason)) return it;
  // The owner clears a record before it closes the descriptors: if the record is unchanged, the
  // right ones were taken.
  uint64_t still = 0;
  if (!read_at(book, offset, &still) || still != number) {
    it.reason = kTakenBack;
    return it;
  }
  return map_all(driver, record, handles);
}

}  // namespace weir::comm
