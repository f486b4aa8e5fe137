// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/state_sweep.h"

#include <algorithm>
#include <cstring>

namespace weir::offload {

bool StateHome::Sweep::is_read(uint64_t chunk) const {
  if (kind_ != Kind::kVisit) return true;
  if (in_memory(chunk)) return false;
  // In a new store, a chunk that nobody has written is zeros.
  return !home_.is_new() || home_.written_[chunk];
}

bool StateHome::Sweep::is_written(uint64_t chunk) const {
  if (kind_ != Kind::kVisit || visit_ == Visit::kRead) return false;
  return visit_ == Visit::kCommit || !in_memory(chunk);
}

unsigned char* StateHome::Sweep::memory(uint64_t chunk, uint64_t* bytes) const {
  if (is_copy(chunk)) {
    const CopyChunk copy = home_.placement_.copy(chunk);
    *bytes = copy.count * sizeof(uint16_t);
    return reinterpret_cast<unsigned char*>(home_.copy(copy.group) + copy.first);
  }
  *bytes = std::min(home_.placement_.state(chunk).layout->state_bytes,
                    home_.placement_.description().payload_bytes());
  return home_.resident(chunk);
}

Status StateHome::Sweep::reads(uint64_t item, std::vector<PipelineTransfer>* transfers) {
  const uint64_t chunk = chunks[item];
  if (progress) progress(done_.load(std::memory_order_relaxed));
  if (!is_read(chunk)) return {};
  const Result<Transfer> read = home_.store_->read_transfer(chunk, nullptr);
  if (!read.ok()) return read.status();
  transfers->push_back({read.value().file, read.value().offset_bytes, 0, read.value().bytes});
  return {};
}

Status StateHome::Sweep::compute(uint64_t item, unsigned char* buffer) {
  const uint64_t chunk = chunks[item];
  if (is_read(chunk)) WEIR_RETURN_IF_ERROR(home_.store_->check_read(chunk, buffer));
  done_.fetch_add(1, std::memory_order_relaxed);
  if (kind_ == Kind::kVerify) return {};
  if (in_memory(chunk)) {
    uint64_t bytes = 0;
    unsigned char* const own = memory(chunk, &bytes);
    if (kind_ == Kind::kLoad) {
      std::memcpy(own, buffer, bytes);
      return {};
    }
    if (body_ != nullptr && !is_copy(chunk)) {
      home_.written_[chunk] = home_.written_[chunk] && visit_ == Visit::kRead;
      WEIR_RETURN_IF_ERROR((*body_)(chunk, own));
    }
    if (!is_written(chunk)) return {};
    std::memcpy(buffer, own, bytes);
  } else {
    if (!is_read(chunk)) std::memset(buffer, 0, home_.placement_.chunk_bytes());
    if (body_ != nullptr) WEIR_RETURN_IF_ERROR((*body_)(chunk, buffer));
    if (!is_written(chunk)) return {};
  }
  return home_.store_->seal(chunk, buffer);
}

Status StateHome::Sweep::writes(uint64_t item, std::vector<PipelineTransfer>* transfers) {
  const uint64_t chunk = chunks[item];
  if (!is_written(chunk)) return {};
  const Result<Transfer> write = home_.store_->sealed_transfer(chunk, nullptr);
  if (!write.ok()) return write.status();
  transfers->push_back({write.value().file, write.value().offset_bytes, 0, write.value().bytes});
  return {};
}

// Copies are whole only when all chunks of state have been computed; they come after those.
bool StateHome::Sweep::computes_after_all(uint64_t item) const {
  return item > 0 && is_copy(chunks[item]) && !is_copy(chunks[item - 1]);
}

Status StateHome::Sweep::written(uint64_t item) {
  const uint64_t chunk = chunks[item];
  if (!is_written(chunk)) return {};
  WEIR_RETURN_IF_ERROR(home_.store_->wrote(chunk));
  home_.written_[chunk] = true;
  return {};
}

}  // namespace weir::offload
