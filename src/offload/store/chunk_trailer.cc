// SPDX-License-Identifier: Apache-2.0
#include "offload/store/chunk_trailer.h"

#include <fmt/format.h>

#include <cstring>

#include "offload/store/bytes.h"
#include "offload/store/crc32c.h"
#include "offload/store/description.h"
#include "offload/store/header.h"

namespace weir::offload {

namespace {

constexpr char kMagic[8] = {'W', 'E', 'I', 'R', 'C', 'H', 'N', 'K'};

Status damaged(std::string why) { return Status(Code::kRefused, std::move(why)); }

}  // namespace

void seal(const ChunkTrailer& trailer, unsigned char* chunk, uint64_t chunk_bytes) {
  unsigned char* p = chunk + chunk_bytes - kChunkTrailerBytes;
  std::memcpy(p, kMagic, 8);
  std::memcpy(p + 8, trailer.id.bytes.data(), 16);
  put_little(p + 24, trailer.chunk);
  put_little(p + 32, trailer.epoch);
  put_little(p + 40, trailer.writing);
  put_little<uint64_t>(p + 48, chunk_bytes - kChunkTrailerBytes);
  put_little<uint32_t>(p + 56, kFormatVersion);
  put_little(p + 60, crc32c(chunk, chunk_bytes - 4));
}

Result<ChunkTrailer> read_trailer(const unsigned char* chunk, uint64_t chunk_bytes) {
  const unsigned char* p = chunk + chunk_bytes - kChunkTrailerBytes;
  if (std::memcmp(p, kMagic, 8) != 0) return damaged("no chunk trailer (never written, or torn)");
  const uint32_t stored = get_little<uint32_t>(p + 60);
  const uint32_t computed = crc32c(chunk, chunk_bytes - 4);
  if (stored != computed) {
    return damaged(fmt::format(
        "checksum expected {:08x}, found {:08x} (flipped bits or a torn write)", stored, computed));
  }
  if (get_little<uint32_t>(p + 56) != kFormatVersion ||
      get_little<uint64_t>(p + 48) != chunk_bytes - kChunkTrailerBytes) {
    return damaged("trailer of another format");
  }
  ChunkTrailer trailer;
  std::memcpy(trailer.id.bytes.data(), p + 8, 16);
  trailer.chunk = get_little<uint64_t>(p + 24);
  trailer.epoch = get_little<uint64_t>(p + 32);
  trailer.writing = get_little<uint64_t>(p + 40);
  return trailer;
}

Status check_chunk(const ChunkTrailer& expected, const unsigned char* chunk, uint64_t chunk_bytes) {
  const Result<ChunkTrailer> read = read_trailer(chunk, chunk_bytes);
  if (!read.ok()) return read.status();
  const ChunkTrailer& found = read.value();
  if (found == expected) return {};
  if (found.id != expected.id) {
    return damaged(fmt::format("expected a chunk of store {}, found one of {}", expected.id.text(),
                               found.id.text()));
  }
  if (found.chunk != expected.chunk) {
    return damaged(fmt::format("found chunk {} in its place (misdirected write)", found.chunk));
  }
  return damaged(fmt::format(
      "expected epoch {} (writing {:016x}), found epoch {} (writing {:016x}): a write was lost, or "
      "another step has overwritten it",
      expected.epoch, expected.writing, found.epoch, found.writing));
}

}  // namespace weir::offload
