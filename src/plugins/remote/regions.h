// SPDX-License-Identifier: Apache-2.0
// Regions: the memory that a rank has registered, and the signals that arrive for it. A peer's
// reference to memory is looked up by index and number of registration and checked against its
// bounds; no address that came with a message is used. One thread at a time.
//
// A signal, in a message that follows its bytes or carries them; a transport that only signals
// leaves the put's fields zero:
//
//   offset  bytes  field (integers little-endian)
//        0      8  token: known to the two ranks only
//        8      4  sender
//       12      4  bytes that follow, to be put
//       16      4  index of the region for them
//       20      4  index of the region of the word
//       24      8  registration of the first region
//       32      8  offset of the bytes in it
//       40      8  registration of the second
//       48      8  offset of the word in it
//       56      8  value to add
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace weir::plugins::remote {

struct Region {
  unsigned char* base = nullptr;
  uint64_t bytes = 0;
  uint32_t index = 0;
  uint64_t registration = 0;  // 0: none
  void* native = nullptr;     // the transport's
  uint64_t native_key = 0;
  uint64_t native_address = 0;  // by which peers name the first byte
};

struct Signal {
  uint64_t token = 0;
  uint32_t sender = 0;
  uint32_t bytes = 0;
  uint32_t region = 0;
  uint32_t word_region = 0;
  uint64_t registration = 0;
  uint64_t offset_bytes = 0;
  uint64_t word_registration = 0;
  uint64_t word_offset_bytes = 0;
  uint64_t value = 0;
};
inline constexpr size_t kSignalBytes = 64;

void encode(const Signal& signal, unsigned char* out);
Signal decode_signal(const unsigned char* in);

// [offset, offset + bytes) lies within `limit` bytes.
constexpr bool is_within(uint64_t offset_bytes, uint64_t bytes, uint64_t limit_bytes) {
  return offset_bytes <= limit_bytes && bytes <= limit_bytes - offset_bytes;
}

class Regions {
 public:
  Regions();
  // Room for a region; valid until it is removed.
  Region* add(void* base, uint64_t bytes);
  void remove(Region* region);
  // Null: there is no such registration, or it is not so long.
  Region* find(uint32_t index, uint64_t registration, uint64_t offset_bytes, uint64_t bytes) const;
  // The region that contains all of the bytes; null: there is none.
  const Region* containing(const void* data, uint64_t bytes) const;

  // Stores the bytes, then adds the value, as an arriving message requests. False: it names memory
  // that is not registered, and nothing was changed.
  bool apply(const Signal& signal, const unsigned char* payload) const;

  const std::vector<std::unique_ptr<Region>>& all() const { return regions_; }

 private:
  std::vector<std::unique_ptr<Region>> regions_;
  uint64_t next_registration_;
};

// The word of a region; false: it lies outside or is not aligned.
bool is_word(const Region& region, uint64_t offset_bytes);
uint64_t read_word(const Region& region, uint64_t offset_bytes);

}  // namespace weir::plugins::remote
