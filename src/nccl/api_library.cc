// SPDX-License-Identifier: Apache-2.0
// nccl.h: the library, its errors, and memory that belongs to no communicator.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "nccl/comm.h"
#include "nccl/outcome.h"
#include "nccl/own.h"
#include "nccl/setups.h"
#include "nccl/translate.h"

using weir::nccl::guarded;
using weir::nccl::invalid_argument;
using weir::nccl::Outcome;

namespace {

// Sizes of what ncclMemAlloc gave; never destroyed, since threads may free while the process ends.
struct Allocations {
  std::mutex lock;
  std::unordered_map<void*, size_t> bytes;
};
Allocations& allocations() {
  static Allocations* it = new Allocations();
  return *it;
}

}  // namespace

ncclResult_t weir::nccl::own::GetVersion(int* version) {
  return guarded("ncclGetVersion", [&]() -> Outcome {
    if (version == nullptr) return invalid_argument("ncclGetVersion: version is NULL");
    *version = NCCL_VERSION_CODE;
    return {};
  });
}

ncclResult_t weir::nccl::own::GetUniqueId(ncclUniqueId* id) {
  return guarded("ncclGetUniqueId",
                 [&] { return weir::nccl::make_unique_id("ncclGetUniqueId", id); });
}

const char* weir::nccl::own::GetErrorString(ncclResult_t result) {
  return weir::nccl::describe(result);
}

const char* weir::nccl::own::GetLastError(ncclComm_t handle) {
  try {
    if (handle != nullptr) {
      if (const auto comm = weir::nccl::find(handle); comm != nullptr) {
        if (std::string text = comm->last_error(); !text.empty()) {
          return weir::nccl::hold_text(std::move(text));
        }
      }
    }
    return weir::nccl::last_error();
  } catch (...) {
    return "";
  }
}

// NCCL reads its variables for logging again; Weir's are read once.
void weir::nccl::own::ResetDebugInit(void) {}

ncclResult_t weir::nccl::own::MemAlloc(void** memory, size_t bytes) {
  return guarded("ncclMemAlloc", [&]() -> Outcome {
    if (memory == nullptr) return invalid_argument("ncclMemAlloc: ptr is NULL");
    *memory = nullptr;
    if (bytes == 0) return {};
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    if (bytes > PTRDIFF_MAX - page) {
      return invalid_argument(
          fmt::format("ncclMemAlloc: size {} exceeds the address space", bytes));
    }
    const size_t mapped = (bytes + page - 1) / page * page;
    void* made = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
      return {ncclSystemError,
              fmt::format("ncclMemAlloc: mmap of {} bytes: {}", mapped, std::strerror(errno))};
    }
    try {
      Allocations& it = allocations();
      std::lock_guard lock(it.lock);
      it.bytes.emplace(made, mapped);
    } catch (...) {
      munmap(made, mapped);
      throw;
    }
    *memory = made;
    return {};
  });
}

ncclResult_t weir::nccl::own::MemFree(void* memory) {
  return guarded("ncclMemFree", [&]() -> Outcome {
    if (memory == nullptr) return {};
    size_t bytes = 0;
    {
      Allocations& it = allocations();
      std::lock_guard lock(it.lock);
      const auto found = it.bytes.find(memory);
      if (found == it.bytes.end()) {
        return invalid_argument(
            fmt::format("ncclMemFree: {} was not given by ncclMemAlloc, or is "
                        "freed already",
                        memory));
      }
      bytes = found->second;
      it.bytes.erase(found);
    }
    munmap(memory, bytes);
    return {};
  });
}
