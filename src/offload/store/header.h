// SPDX-License-Identifier: Apache-2.0
// Header of a store: written once, at creation, into both metadata files of every directory, and
// never changed. Values; no thread rule.
//
// Bytes, little-endian; the first 24 and the meaning of the checksum stay the same in every
// version:
//
//   offset  bytes  field
//        0      8  magic "WEIRHDR" 0
//        8      4  format version, 1
//       12      4  CRC32C of all header_bytes with this field zero
//       16      8  header_bytes: multiple of 4096, zero behind the last group
//       24     16  store id
//       40      4  kind: 1 store (two slots), 2 checkpoint (one slot, never changed)
//       44      4  index of this directory
//       48      4  directory count
//       52      4  rank
//       56      4  rank count
//       60      4  group count
//       64      8  chunk_bytes
//       72      8  fingerprint of the model
//       80      4  bytes of the model's name
//       84      4  zero
//       88      …  the model's name
//                  then each group: 8 element count, 8 first element, 8 chunk elements, 4 method,
//                  4 state format, 4 bytes of the name, the name; nothing is aligned
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "offload/store/description.h"
#include "offload/store/store_id.h"

namespace weir::offload {

inline constexpr uint32_t kFormatVersion = 1;

enum class StoreKind : uint32_t { kStore = 1, kCheckpoint = 2 };

struct Header {
  StoreId id;
  StoreKind kind = StoreKind::kStore;
  uint32_t directory_index = 0;
  uint32_t directory_count = 1;
  StoreDescription description;
  bool operator==(const Header&) const = default;
};

// A multiple of kDiskAlignment long. The description must be valid.
std::vector<unsigned char> encode(const Header& header);

// kRefused: no header, or a damaged one. kUnsupported: an undamaged header of another version.
Result<Header> decode_header(std::span<const unsigned char> bytes);

}  // namespace weir::offload
