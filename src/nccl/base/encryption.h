// SPDX-License-Identifier: Apache-2.0
// The key of ncclSetEncryption. With a key, all traffic between hosts is encrypted as WEIR_TLS=all
// says (docs/trust.md), and the secret with which the ranks of a new communicator meet depends on
// the key, so that only processes with the same key meet. Thread-safe.
#pragma once

#include "nccl/base/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

// Shorter keys are refused, as NCCL does.
inline constexpr size_t kKeyCharactersMin = 32;

// For the communicators that are made from now on; nullptr: no key.
Outcome set_key(const char* function, const char* key);
bool has_key();

// The id itself; with a key, the one with the secret that depends on the key.
weir_unique_id_t with_key(const weir_unique_id_t& id);

}  // namespace weir::nccl
