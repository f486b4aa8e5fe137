// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli polynomial 0x1EDC6F41, reflected, as in iSCSI, RFC 3720 appendix B.4): the
// checksum of everything that a store writes. Uses the CPU's instruction where there is one
// (SSE4.2, ARMv8 CRC), three streams at a time, and a table elsewhere. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::offload {

// The checksum of `bytes` bytes that follow data whose checksum is `before` (0 = none).
uint32_t crc32c(const void* data, size_t bytes, uint32_t before = 0);

// The same without the CPU's instruction; for tests and for CPUs without it.
uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t before = 0);

}  // namespace weir::offload
