// SPDX-License-Identifier: Apache-2.0
// The files of a store in each of its directories. Stateless.
//
//   meta-a, meta-b   two copies each of the commit records (pages 0 and 1) and the header
//                    (from 8192)
//   slot-a, slot-b   chunk i of the store is chunk i / D of directory i mod D, at
//                    (i / D) * chunk_bytes
//   slot-?.next      the slot's next file, while a checkpoint holds the present one
//   lock             empty; locked while the store is open for writing
//
// A checkpoint has meta-a, meta-b and one slot.
#pragma once

#include <cstdint>
#include <string>

namespace weir::offload {

inline constexpr uint32_t kMetaCopies = 2;
inline constexpr uint64_t kHeaderOffset = 8192;

inline std::string meta_path(const std::string& directory, uint32_t copy) {
  return directory + (copy == 0 ? "/meta-a" : "/meta-b");
}
inline std::string slot_path(const std::string& directory, uint32_t slot) {
  return directory + (slot == 0 ? "/slot-a" : "/slot-b");
}
inline std::string next_slot_path(const std::string& directory, uint32_t slot) {
  return slot_path(directory, slot) + ".next";
}
inline std::string lock_path(const std::string& directory) { return directory + "/lock"; }

// Size of a slot file in directory `index` of `count`.
inline uint64_t slot_bytes(uint64_t chunk_count, uint64_t chunk_bytes, uint32_t index,
                           uint32_t count) {
  return (chunk_count + count - 1 - index) / count * chunk_bytes;
}

}  // namespace weir::offload
