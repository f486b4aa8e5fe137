// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/imports.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

std::string failed(const cuda::Driver& driver, const char* call, cuda::Result result) {
  return cuda_failed(driver, "memory by mapping", call, result).text();
}

// Maps one piece; its handle is not needed afterwards.
bool map_piece(const cuda::Driver& driver, const OwnedDescriptor& piece, cuda::DevicePointer at,
               uint64_t bytes, std::string* reason) {
  cuda::AllocationHandle handle = 0;
  cuda::Result result = driver.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(piece.get())),
      cuda::kHandleDescriptor);
  if (result != cuda::kSuccess) {
    *reason = failed(driver, "cuMemImportFromShareableHandle", result);
    return false;
  }
  result = driver.cuMemMap(at, bytes, 0, handle, 0);
  (void)driver.cuMemRelease(handle);
  if (result != cuda::kSuccess) *reason = failed(driver, "cuMemMap", result);
  return result == cuda::kSuccess;
}

}  // namespace

// From another process: the descriptor may be of any file, which is not read before it is known to
// be memory.
std::vector<uint64_t> read_pieces(const OwnedDescriptor& list, uint32_t count, uint64_t bytes) {
  if (count == 0 || count > kPiecesMax) return {};
  struct stat facts {};
  std::vector<uint64_t> words(2 + size_t{count});
  const auto size = static_cast<ssize_t>(words.size() * sizeof words[0]);
  if (fstat(list.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size != size ||
      fcntl(list.get(), F_GET_SEALS) != kSeals ||
      pread(list.get(), words.data(), static_cast<size_t>(size), 0) != size ||
      words[0] != kPiecesMagic || words[1] != count) {
    return {};
  }
  uint64_t total = 0;
  words.erase(words.begin(), words.begin() + 2);
  for (const uint64_t it : words) {
    if (it == 0 || it > bytes - total) return {};
    total += it;
  }
  return total == bytes ? words : std::vector<uint64_t>();
}

Imported import_memory(const cuda::Driver& driver, const std::vector<uint64_t>& lengths,
                       const std::vector<OwnedDescriptor>& pieces, uint64_t bytes) {
  Imported it;
  if (!driver.can_share_mapped()) {
    it.reason = "this CUDA has no functions for memory by mapping";
    return it;
  }
  cuda::MemoryAccess access;
  access.location.type = cuda::kLocationDevice;
  access.flags = cuda::kAccessReadWrite;
  cuda::Result result = driver.cuCtxGetDevice(&access.location.id);
  if (result != cuda::kSuccess) {
    it.reason = failed(driver, "cuCtxGetDevice", result);
    return it;
  }
  cuda::DevicePointer base = 0;
  result = driver.cuMemAddressReserve(&base, bytes, 0, 0, 0);
  if (result != cuda::kSuccess) {
    it.reason = failed(driver, "cuMemAddressReserve", result);
    return it;
  }
  uint64_t mapped = 0;
  bool ok = true;
  for (size_t i = 0; i < pieces.size() && ok; ++i) {
    ok = map_piece(driver, pieces[i], base + mapped, lengths[i], &it.reason);
    if (ok) mapped += lengths[i];
  }
  if (ok) {
    result = driver.cuMemSetAccess(base, bytes, &access, 1);
    ok = result == cuda::kSuccess;
    if (!ok) it.reason = failed(driver, "cuMemSetAccess", result);
  }
  if (ok) {
    it.pointer = base;
    return it;
  }
  if (mapped > 0) (void)driver.cuMemUnmap(base, mapped);
  (void)driver.cuMemAddressFree(base, bytes);
  return it;
}

void end_import(const cuda::Driver& driver, cuda::DevicePointer pointer, uint64_t bytes) {
  (void)driver.cuMemUnmap(pointer, bytes);
  (void)driver.cuMemAddressFree(pointer, bytes);
}

}  // namespace weir::comm
