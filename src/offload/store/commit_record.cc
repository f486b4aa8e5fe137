// SPDX-License-Identifier: Apache-2.0
#include "offload/store/commit_record.h"

#include <fmt/format.h>

#include <cstring>

#include "offload/store/bytes.h"
#include "offload/store/crc32c.h"
#include "offload/store/header.h"

namespace weir::offload {

namespace {

constexpr char kMagic[8] = {'W', 'E', 'I', 'R', 'C', 'M', 'T', 0};
constexpr size_t kIdOffset = 16;
constexpr size_t kSlotOffset = 48;
constexpr size_t kSlotBytes = 1952;
constexpr size_t kSlotDataOffset = 32;
constexpr uint32_t kFlagCommitted = 1;
constexpr uint32_t kFlagHeld = 2;
static_assert(kSlotDataOffset + kCommitDataBytesMax == kSlotBytes);
static_assert(kSlotOffset + 2 * kSlotBytes <= kRecordBytes);

uint32_t checksum(const unsigned char* page) {
  constexpr unsigned char kZero[4] = {};
  uint32_t crc = crc32c(page, 12);
  crc = crc32c(kZero, 4, crc);
  return crc32c(page + 16, kRecordBytes - 16, crc);
}

Status damaged(const std::string& why) { return Status(Code::kRefused, "commit record " + why); }

}  // namespace

void encode(const CommitRecord& record, unsigned char* page) {
  std::memset(page, 0, kRecordBytes);
  std::memcpy(page, kMagic, 8);
  put_little<uint32_t>(page + 8, kFormatVersion);
  std::memcpy(page + 16, record.id.bytes.data(), 16);
  put_little(page + 32, record.sequence);
  put_little(page + 40, record.current);
  for (size_t s = 0; s < 2; ++s) {
    const SlotState& slot = record.slots[s];
    unsigned char* p = page + kSlotOffset + s * kSlotBytes;
    WEIR_CHECK(slot.data.size() <= kCommitDataBytesMax, "commit data was checked by commit()");
    put_little(p, slot.epoch);
    put_little(p + 8, slot.step);
    put_little(p + 16, slot.writing);
    put_little(p + 24, (slot.committed ? kFlagCommitted : 0) | (slot.held ? kFlagHeld : 0));
    put_little(p + 28, static_cast<uint32_t>(slot.data.size()));
    if (!slot.data.empty()) {
      std::memcpy(p + kSlotDataOffset, slot.data.data(), slot.data.size());
    }
  }
  put_little(page + 12, checksum(page));
}

StoreId record_id(std::span<const unsigned char> page) {
  StoreId id;
  std::memcpy(id.bytes.data(), page.data() + kIdOffset, id.bytes.size());
  return id;
}

Result<CommitRecord> decode_record(std::span<const unsigned char> bytes, const StoreId& id) {
  if (bytes.size() < kRecordBytes) return damaged("is cut short");
  const unsigned char* page = bytes.data();
  if (std::memcmp(page, kMagic, 8) != 0) return damaged("has no magic number");
  if (get_little<uint32_t>(page + 12) != checksum(page)) return damaged("has a wrong checksum");
  if (get_little<uint32_t>(page + 8) != kFormatVersion) return damaged("has another version");
  CommitRecord record;
  std::memcpy(record.id.bytes.data(), page + 16, 16);
  if (record.id != id) {
    return damaged(fmt::format("is of store {}, not of {}", record.id.text(), id.text()));
  }
  record.sequence = get_little<uint64_t>(page + 32);
  record.current = get_little<uint32_t>(page + 40);
  for (size_t s = 0; s < 2; ++s) {
    SlotState& slot = record.slots[s];
    const unsigned char* p = page + kSlotOffset + s * kSlotBytes;
    slot.epoch = get_little<uint64_t>(p);
    slot.step = get_little<uint64_t>(p + 8);
    slot.writing = get_little<uint64_t>(p + 16);
    const uint32_t flags = get_little<uint32_t>(p + 24);
    slot.committed = (flags & kFlagCommitted) != 0;
    slot.held = (flags & kFlagHeld) != 0;
    const uint32_t data_bytes = get_little<uint32_t>(p + 28);
    if (data_bytes > kCommitDataBytesMax) return damaged("has too much data");
    slot.data.assign(p + kSlotDataOffset, p + kSlotDataOffset + data_bytes);
  }
  if (record.current > kNoSlot ||
      (record.current < kNoSlot && !record.slots[record.current].committed)) {
    return damaged("names an impossible slot");
  }
  return record;
}

}  // namespace weir::offload
