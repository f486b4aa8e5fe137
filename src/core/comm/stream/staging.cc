// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

namespace {

constexpr size_t kMailboxesMin = 8;
constexpr size_t kBytesMin = size_t{64} << 10;
// Limit of a piece's size, as a multiple of the requested size.
constexpr size_t kOversize = 8;

// Free pieces; a stream may still have to pass them. Never destroyed: threads may return pieces
// while the process ends.
struct Resting {
  std::mutex lock;
  std::vector<std::unique_ptr<Staging>> pieces;
};
Resting& resting() {
  static constinit PerProcess<Resting> it;
  return it.get();
}

void give_back(Staging* piece) noexcept {
  std::unique_ptr<Staging> owned(piece);
  try {
    Resting& it = resting();
    std::lock_guard lock(it.lock);
    it.pieces.push_back(std::move(owned));
  } catch (...) {
    // Without memory for the list the piece is lost; its memory stays pinned.
  }
}

std::unique_ptr<Staging> take_resting(size_t mailboxes, size_t bytes) {
  Resting& it = resting();
  std::lock_guard lock(it.lock);
  auto best = it.pieces.end();
  for (auto at = it.pieces.begin(); at != it.pieces.end(); ++at) {
    if (!(*at)->holds(mailboxes, bytes) || (*at)->byte_count > bytes * kOversize + kBytesMin ||
        !(*at)->quiet()) {
      continue;
    }
    if (best == it.pieces.end() || (*at)->byte_count < (*best)->byte_count) best = at;
  }
  if (best == it.pieces.end()) return nullptr;
  std::unique_ptr<Staging> taken = std::move(*best);
  it.pieces.erase(best);
  return taken;
}

}  // namespace

bool Staging::quiet() const {
  return std::all_of(mailboxes, mailboxes + mailbox_count, [](Mailbox& it) { return it.quiet(); });
}

Status get_staging(const cuda::Driver& driver, const char* function, size_t mailboxes, size_t bytes,
                   std::shared_ptr<Staging>* out) {
  std::unique_ptr<Staging> piece = take_resting(mailboxes, bytes);
  if (piece == nullptr) {
    if (bytes > PTRDIFF_MAX / 2) {
      return Status(
          Code::kNoMemory,
          fmt::format(
              "{}: {} bytes of pinned memory cannot be allocated; lower WEIR_NCCL_CHUNK_BYTES",
              function, bytes));
    }
    piece = std::make_unique<Staging>();
    piece->mailbox_count = std::bit_ceil(std::max(mailboxes, kMailboxesMin));
    piece->byte_count = std::bit_ceil(std::max(bytes, kBytesMin));
    const size_t flag_bytes = piece->mailbox_count * sizeof(Mailbox);
    void* memory = nullptr;
    const cuda::RelaxedCapture relaxed(driver);
    const cuda::Result result = driver.cuMemHostAlloc(&memory, flag_bytes + piece->byte_count,
                                                      cuda::kHostPortable | cuda::kHostDeviceMap);
    if (result != cuda::kSuccess) {
      return cuda_failed(
          driver, function,
          fmt::format("cuMemHostAlloc of {} bytes", flag_bytes + piece->byte_count).c_str(),
          result);
    }
    std::memset(memory, 0, flag_bytes);
    piece->mailboxes = static_cast<Mailbox*>(memory);
    piece->bytes = static_cast<char*>(memory) + flag_bytes;
  }
  *out = std::shared_ptr<Staging>(piece.release(), give_back);
  return {};
}

}  // namespace weir::comm
