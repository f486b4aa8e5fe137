// SPDX-License-Identifier: Apache-2.0
// nccl.h: the library, its errors, and memory that belongs to no communicator.
#include "nccl/api/own.h"
#include "nccl/api/translate.h"
#include "nccl/base/encryption.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/comm/config.h"
#include "nccl/host/symmetric.h"
#include "nccl/own/setups.h"

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
        return weir::nccl::last_error_of_no_communicator();
      }
    }
    return weir::nccl::last_error();
  } catch (...) {
    return "";
  }
}

// NCCL reads its variables for logging again; Weir reads its own once.
void weir::nccl::own::ResetDebugInit(void) {}

ncclResult_t weir::nccl::own::SetEncryption(const ncclEncryptionConfig_t* config) {
  constexpr const char* kFunction = "ncclSetEncryption";
  return guarded(kFunction, [&]() -> Outcome {
    const char* key = nullptr;
    Outcome outcome = weir::nccl::read_encryption(kFunction, config, &key);
    return outcome.ok() ? weir::nccl::set_key(kFunction, key) : outcome;
  });
}

ncclResult_t weir::nccl::own::MemAlloc(void** memory, size_t bytes) {
  return guarded("ncclMemAlloc", [&]() -> Outcome {
    if (memory == nullptr) return invalid_argument("ncclMemAlloc: ptr is NULL");
    *memory = nullptr;
    if (bytes == 0) return {};
    return weir::nccl::allocate_symmetric("ncclMemAlloc", bytes, memory);
  });
}

ncclResult_t weir::nccl::own::MemFree(void* memory) {
  return guarded("ncclMemFree", [&]() -> Outcome {
    if (memory == nullptr) return {};
    return weir::nccl::free_symmetric("ncclMemFree", memory);
  });
}
