// SPDX-License-Identifier: Apache-2.0
// ChunkTrailer: the last 64 bytes of a chunk on disk. It ties the payload before it to one store,
// one chunk and one writing of it, so that flipped bits and torn, stale and misdirected writes are
// detected and told apart when the chunk is read. Stateless; thread-safe for different buffers.
//
// Bytes from the start of the trailer (at chunk_bytes - 64), little-endian:
//
//   offset  bytes  field
//        0      8  magic "WEIRCHNK"
//        8     16  store id
//       24      8  chunk number in the store
//       32      8  epoch that the step was to become
//       40      8  writing: drawn at random when the store is opened, then one more each step; two
//                  attempts at the same epoch differ in it
//       48      8  payload bytes: chunk_bytes - 64
//       56      4  format version
//       60      4  CRC32C of all bytes of the chunk before this field
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "offload/store/store_id.h"

namespace weir::offload {

struct ChunkTrailer {
  StoreId id;
  uint64_t chunk = 0;
  uint64_t epoch = 0;
  uint64_t writing = 0;
  bool operator==(const ChunkTrailer&) const = default;
};

// Writes the trailer of a chunk of `chunk_bytes` bytes behind its payload.
void seal(const ChunkTrailer& trailer, unsigned char* chunk, uint64_t chunk_bytes);

// The trailer of a chunk whose bytes are as they were sealed; kRefused when they are not.
Result<ChunkTrailer> read_trailer(const unsigned char* chunk, uint64_t chunk_bytes);

// Ok when the chunk is exactly the expected one, else kRefused; the text says what was found
// instead.
Status check_chunk(const ChunkTrailer& expected, const unsigned char* chunk, uint64_t chunk_bytes);

}  // namespace weir::offload
