// SPDX-License-Identifier: Apache-2.0
// StoreDescription: what a store holds, as given by its creator and recorded in its header. Method
// and state format of a group are numbers of the optimizer layer; the store only compares them.
// Values; no thread rule.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

inline constexpr uint64_t kChunkTrailerBytes = 64;
inline constexpr uint64_t kChunkBytesMin = 4096;
inline constexpr uint64_t kChunkBytesMax = uint64_t{1} << 30;
inline constexpr uint64_t kChunkCountMax = uint64_t{1} << 32;
inline constexpr uint32_t kGroupCountMax = 1u << 20;
inline constexpr uint32_t kNameBytesMax = 4096;
inline constexpr uint64_t kHeaderBytesMax = uint64_t{1} << 28;

struct GroupDescription {
  std::string name;
  uint64_t element_count = 0;   // of this rank; 0 where the rank holds none of the group
  uint64_t first_element = 0;   // of this rank's range in the whole group (0 with one rank)
  uint64_t chunk_elements = 0;  // elements in each chunk but the last
  uint32_t method = 0;
  uint32_t state_format = 0;
  bool operator==(const GroupDescription&) const = default;
};

struct StoreDescription {
  std::string model;         // a name for error texts
  uint64_t fingerprint = 0;  // of the model's parameters, as the caller hashes them
  uint32_t rank = 0;
  uint32_t rank_count = 1;
  uint64_t chunk_bytes = 0;  // on disk, trailer included; multiple of 4096
  std::vector<GroupDescription> groups;
  bool operator==(const StoreDescription&) const = default;

  // The bytes of a chunk that the caller may use.
  uint64_t payload_bytes() const { return chunk_bytes - kChunkTrailerBytes; }
  // Chunks of the group, and of all groups; groups follow one another in chunk numbers.
  static uint64_t chunk_count(const GroupDescription& group);
  uint64_t chunk_count() const;
  // The number of the group's first chunk.
  uint64_t first_chunk(uint32_t group) const;
};

// Checks the limits above; group names are unique and not empty; rank is below rank_count.
Status validate(const StoreDescription& description);

// Where an element lies.
struct ChunkPlace {
  uint32_t group = 0;
  uint64_t chunk = 0;          // number in the store
  uint64_t first_element = 0;  // of the chunk, in this rank's range of the group
  uint64_t element_count = 0;  // in the chunk
};
// Of chunk number `chunk`, which must exist.
ChunkPlace place_of(const StoreDescription& description, uint64_t chunk);

// Ok, or an error whose text gives the first difference: what was expected and what was found.
Status compare(const StoreDescription& expected, const StoreDescription& found);

}  // namespace weir::offload
