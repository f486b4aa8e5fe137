// SPDX-License-Identifier: Apache-2.0
#include "offload/store/store_run.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "offload/store/transfer_all.h"

namespace weir::offload {

namespace {

constexpr uint64_t kTimeoutMs = 1000;

Status read_chunk(Disk& disk, const Store& store, uint64_t chunk, AlignedBuffer* buffer) {
  Result<Transfer> read = store.read_transfer(chunk, buffer->data());
  if (!read.ok()) return read.status();
  WEIR_RETURN_IF_ERROR(transfer_all(disk, {&read.value(), 1}, kTimeoutMs).first_error());
  return store.check_read(chunk, buffer->data());
}

}  // namespace

StoreDescription test_description(uint32_t rank, uint32_t rank_count) {
  StoreDescription description;
  description.model = "little";
  description.fingerprint = 0x1234;
  description.rank = rank;
  description.rank_count = rank_count;
  description.chunk_bytes = kTestChunkBytes;
  description.groups = {{"embedding", 900, 900 * uint64_t{rank}, 300, 1, 0},
                        {"norm", 10, 10 * uint64_t{rank}, 300, 1, 0},
                        {"head", 301, 301 * uint64_t{rank}, 300, 2, 1}};
  return description;
}

std::vector<std::string> test_directories(uint32_t count) {
  std::vector<std::string> directories;
  for (uint32_t d = 0; d < count; ++d) directories.push_back("/drive" + std::to_string(d));
  return directories;
}

StoreOptions test_options(uint64_t seed) {
  StoreOptions options;
  options.timeout_ms = 1000;
  options.random = [random = std::mt19937_64(seed)]() mutable { return random(); };
  return options;
}

void fill(uint64_t chunk, uint64_t step, uint64_t salt, unsigned char* buffer, uint64_t bytes) {
  uint64_t value = (chunk * 1000003 + step) * 1000003 + salt;
  for (uint64_t at = 0; at < bytes; at += 8) {
    value = value * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = value ^ (value >> 29);
    std::memcpy(buffer + at, &word, 8);
  }
}

Status write_step(Disk& disk, Store& store, uint64_t step, uint64_t salt) {
  WEIR_RETURN_IF_ERROR(store.begin_step(step));
  const uint64_t window = disk.depth();
  std::vector<AlignedBuffer> buffers;
  for (uint64_t b = 0; b < window; ++b) {
    Result<AlignedBuffer> buffer = AlignedBuffer::make(kTestChunkBytes);
    if (!buffer.ok()) return buffer.status();
    buffers.push_back(buffer.take());
  }
  for (uint64_t first = 0; first < store.chunk_count(); first += window) {
    const uint64_t count = std::min(window, store.chunk_count() - first);
    std::vector<Transfer> batch;
    if (store.committed() != nullptr) {
      for (uint64_t i = 0; i < count; ++i) {
        Result<Transfer> read = store.read_transfer(first + i, buffers[i].data());
        if (!read.ok()) return read.status();
        batch.push_back(read.value());
      }
      WEIR_RETURN_IF_ERROR(transfer_all(disk, batch, kTimeoutMs).first_error());
      for (uint64_t i = 0; i < count; ++i) {
        WEIR_RETURN_IF_ERROR(store.check_read(first + i, buffers[i].data()));
      }
      batch.clear();
    }
    for (uint64_t i = 0; i < count; ++i) {
      fill(first + i, step, salt, buffers[i].data(), store.description().payload_bytes());
      Result<Transfer> write = store.write_transfer(first + i, buffers[i].data());
      if (!write.ok()) return write.status();
      batch.push_back(write.value());
    }
    WEIR_RETURN_IF_ERROR(transfer_all(disk, batch, kTimeoutMs).first_error());
    for (uint64_t i = 0; i < count; ++i) WEIR_RETURN_IF_ERROR(store.wrote(first + i));
  }
  return {};
}

Status commit_step(Disk& disk, Store& store, uint64_t step, uint64_t salt) {
  WEIR_RETURN_IF_ERROR(write_step(disk, store, step, salt));
  const std::vector<unsigned char> data(5, static_cast<unsigned char>(step));
  return store.commit(data);
}

Status check_state(Disk& disk, Store& store, uint64_t step, uint64_t salt) {
  Result<AlignedBuffer> buffer = AlignedBuffer::make(kTestChunkBytes);
  if (!buffer.ok()) return buffer.status();
  std::vector<unsigned char> expected(store.description().payload_bytes());
  for (uint64_t chunk = 0; chunk < store.chunk_count(); ++chunk) {
    WEIR_RETURN_IF_ERROR(read_chunk(disk, store, chunk, &buffer.value()));
    fill(chunk, step, salt, expected.data(), expected.size());
    if (std::memcmp(buffer.value().data(), expected.data(), expected.size()) != 0) {
      return Status(Code::kInternal, "WRONG DATA in chunk " + std::to_string(chunk));
    }
  }
  return {};
}

Status check_committed(Disk& disk, Store& store, uint64_t salt) {
  const SlotState* state = store.committed();
  if (state == nullptr) return Status(Code::kRefused, "nothing is committed");
  if (state->data != std::vector<unsigned char>(5, static_cast<unsigned char>(state->step))) {
    return Status(Code::kInternal, "WRONG DATA of the commit");
  }
  return check_state(disk, store, state->step, salt);
}

}  // namespace weir::offload
