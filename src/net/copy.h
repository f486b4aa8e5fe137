// SPDX-License-Identifier: Apache-2.0
// Copying between buffers of any alignment. Thread-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace weir::net {

// memcpy, also fast where the C library's is not: on some processors (AMD's Zen 3, glibc 2.36) it
// takes up to 30 times as long where `to` lies less than a line after `from`, as seen within their
// pages, because each load appears to depend on the store before it. Long buffers of malloc begin
// 16 bytes into a page, so that this is common. From the end on, in pieces, nothing waits.
inline void copy(void* to, const void* from, size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  constexpr size_t kLineBytes = 64;
  constexpr size_t kPieceBytes = 1024;
  const size_t after =
      (reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from)) % kPageBytes;
  size_t rest = bytes;
  if (after - 1 < kLineBytes - 1) {
    for (; rest > 2 * kPieceBytes; rest -= kPieceBytes) {
      memcpy(static_cast<char*>(to) + rest - kPieceBytes,
             static_cast<const char*>(from) + rest - kPieceBytes, kPieceBytes);
    }
  }
  memcpy(to, from, rest);
}

}  // namespace weir::net
