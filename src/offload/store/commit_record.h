// SPDX-License-Identifier: Apache-2.0
// CommitRecord: says what the two slots of a store hold and which of them counts. The newest record
// that can be read decides what a store is. A record with sequence s is written to page s mod 2 of
// both metadata files of every directory, so that writing one never touches the one before, and no
// single torn or misdirected write destroys all copies of any. Values; no thread rule.
//
// Bytes of its page, little-endian:
//
//   offset  bytes  field
//        0      8  magic "WEIRCMT" 0
//        8      4  format version
//       12      4  CRC32C of all 4096 bytes with this field zero
//       16     16  store id
//       32      8  sequence; each record's is one more than that of the record before
//       40      4  current slot: 0, 1, or 2 when nothing was committed yet
//       44      4  zero
//       48   1952  slot 0
//     2000   1952  slot 1
//     3952    144  zero
//
// Bytes of a slot:
//
//        0      8  epoch: number of commits up to this state, from 1
//        8      8  step, as the caller counts
//       16      8  writing: the number that all chunks of this state carry
//       24      4  flags: 1 committed, 2 held (a checkpoint shares the file: never write to it)
//       28      4  bytes of the caller's data
//       32   1920  the caller's data, zero behind
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "offload/store/store_id.h"

namespace weir::offload {

inline constexpr uint64_t kRecordBytes = 4096;
inline constexpr uint32_t kCommitDataBytesMax = 1920;
inline constexpr uint32_t kNoSlot = 2;

// The commit of a slot. The slot counts as whole only while no later step has begun to write it.
struct SlotState {
  bool committed = false;
  bool held = false;
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint64_t writing = 0;
  std::vector<unsigned char> data;
  bool operator==(const SlotState&) const = default;
};

struct CommitRecord {
  StoreId id;
  uint64_t sequence = 0;
  uint32_t current = kNoSlot;
  std::array<SlotState, 2> slots;
  bool operator==(const CommitRecord&) const = default;
};

// Fills kRecordBytes bytes.
void encode(const CommitRecord& record, unsigned char* page);

// The store id that the page of a record names; whether it is a record, decode_record says.
StoreId record_id(std::span<const unsigned char> page);

// kRefused with the reason: no record, a damaged one, or one of another store.
Result<CommitRecord> decode_record(std::span<const unsigned char> page, const StoreId& id);

}  // namespace weir::offload
