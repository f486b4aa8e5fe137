// SPDX-License-Identifier: Apache-2.0
#include "offload/store/scan.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "offload/store/aligned_buffer.h"

namespace weir::offload {

namespace {

constexpr uint64_t kWindowMax = 8;
constexpr uint64_t kWindowBytesMax = uint64_t{64} << 20;

}  // namespace

Status scan_chunks(Disk& disk, const ScanRange& range, const ChunkVisitor& visit) {
  const uint64_t window = std::max<uint64_t>(
      1, std::min({kWindowMax, uint64_t{disk.depth()}, kWindowBytesMax / range.chunk_bytes,
                   uint64_t{range.chunks.size()}}));
  std::vector<AlignedBuffer> buffers;
  std::vector<uint64_t> chunk_of(window);
  std::vector<uint64_t> idle;
  for (uint64_t b = 0; b < window; ++b) {
    Result<AlignedBuffer> buffer = AlignedBuffer::make(range.chunk_bytes);
    if (!buffer.ok()) return buffer.status();
    buffers.push_back(buffer.take());
    idle.push_back(b);
  }
  uint64_t next = 0;
  uint64_t under_way = 0;
  Status result;
  std::vector<Completion> done;
  while (under_way > 0 || (next < range.chunks.size() && result.ok())) {
    while (result.ok() && next < range.chunks.size() && !idle.empty()) {
      const uint64_t b = idle.back();
      const uint64_t chunk = range.chunks[next];
      Transfer read;
      read.file = range.files[chunk % range.files.size()];
      read.offset_bytes = chunk / range.files.size() * range.chunk_bytes;
      read.buffer = buffers[b].data();
      read.bytes = range.chunk_bytes;
      read.tag = b;
      const Result<uint32_t> taken = disk.submit({&read, 1});
      if (!taken.ok()) result = taken.status();
      if (!taken.ok() || taken.value() == 0) break;
      idle.pop_back();
      chunk_of[b] = chunk;
      ++next;
      ++under_way;
    }
    if (under_way == 0) {
      if (!result.ok()) break;
      return Status(Code::kInternal, "the disk takes no transfer");
    }
    done.clear();
    const Status status = disk.reap(1, now_ns() + range.timeout_ms * 1'000'000u, &done);
    for (const Completion& completion : done) {
      --under_way;
      if (result.ok()) {
        result = visit(chunk_of[completion.tag], completion.status, buffers[completion.tag].data());
      }
      idle.push_back(completion.tag);
    }
    if (!status.ok() && done.empty()) {
      if (!result.ok()) {  // not even after cancel: unfinished reads may still write buffers
        for (AlignedBuffer& buffer : buffers) buffer.leak();
        return result;
      }
      result = status;
      disk.cancel();
    }
  }
  return result;
}

}  // namespace weir::offload
