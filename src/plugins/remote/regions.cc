// SPDX-License-Identifier: Apache-2.0
#include "plugins/remote/regions.h"

#include <atomic>
#include <cstring>

#include "net/auth.h"
#include "plugins/remote/key.h"

namespace weir::plugins::remote {

void encode(const Signal& signal, unsigned char* out) {
  store(out, signal.token, 8);
  store(out + 8, signal.sender, 4);
  store(out + 12, signal.bytes, 4);
  store(out + 16, signal.region, 4);
  store(out + 20, signal.word_region, 4);
  store(out + 24, signal.registration, 8);
  store(out + 32, signal.offset_bytes, 8);
  store(out + 40, signal.word_registration, 8);
  store(out + 48, signal.word_offset_bytes, 8);
  store(out + 56, signal.value, 8);
}

Signal decode_signal(const unsigned char* in) {
  Signal signal;
  signal.token = load(in, 8);
  signal.sender = static_cast<uint32_t>(load(in + 8, 4));
  signal.bytes = static_cast<uint32_t>(load(in + 12, 4));
  signal.region = static_cast<uint32_t>(load(in + 16, 4));
  signal.word_region = static_cast<uint32_t>(load(in + 20, 4));
  signal.registration = load(in + 24, 8);
  signal.offset_bytes = load(in + 32, 8);
  signal.word_registration = load(in + 40, 8);
  signal.word_offset_bytes = load(in + 48, 8);
  signal.value = load(in + 56, 8);
  return signal;
}

// Begins at a random number, so that keys and signals for an earlier instance are not valid here.
Regions::Regions() : next_registration_(1) {
  uint64_t random = 0;
  if (net::fill_random(&random, sizeof random)) next_registration_ = random >> 1 | 1;
}

Region* Regions::add(void* base, uint64_t bytes) {
  Region* free = nullptr;
  for (const auto& region : regions_) {
    if (region->registration == 0) free = region.get();
  }
  if (free == nullptr) {
    regions_.push_back(std::make_unique<Region>());
    free = regions_.back().get();
    free->index = static_cast<uint32_t>(regions_.size() - 1);
  }
  free->base = static_cast<unsigned char*>(base);
  free->bytes = bytes;
  free->registration = next_registration_++;
  return free;
}

void Regions::remove(Region* region) {
  region->registration = 0;
  region->bytes = 0;
  region->native = nullptr;
}

Region* Regions::find(uint32_t index, uint64_t registration, uint64_t offset_bytes,
                      uint64_t bytes) const {
  if (registration == 0 || index >= regions_.size()) return nullptr;
  Region* region = regions_[index].get();
  if (region->registration != registration) return nullptr;
  return is_within(offset_bytes, bytes, region->bytes) ? region : nullptr;
}

const Region* Regions::containing(const void* data, uint64_t bytes) const {
  const auto at = reinterpret_cast<uint64_t>(data);
  for (const auto& region : regions_) {
    const auto base = reinterpret_cast<uint64_t>(region->base);
    if (region->registration != 0 && at >= base && is_within(at - base, bytes, region->bytes)) {
      return region.get();
    }
  }
  return nullptr;
}

bool is_word(const Region& region, uint64_t offset_bytes) {
  return is_within(offset_bytes, sizeof(uint64_t), region.bytes) &&
         reinterpret_cast<uint64_t>(region.base + offset_bytes) % sizeof(uint64_t) == 0;
}

uint64_t read_word(const Region& region, uint64_t offset_bytes) {
  auto* word = reinterpret_cast<uint64_t*>(region.base + offset_bytes);
  return std::atomic_ref<uint64_t>(*word).load(std::memory_order_acquire);
}

bool Regions::apply(const Signal& signal, const unsigned char* payload) const {
  const Region* word = find(signal.word_region, signal.word_registration, signal.word_offset_bytes,
                            sizeof(uint64_t));
  if (word == nullptr || !is_word(*word, signal.word_offset_bytes)) return false;
  if (signal.bytes != 0) {
    const Region* target =
        find(signal.region, signal.registration, signal.offset_bytes, signal.bytes);
    if (target == nullptr) return false;
    std::memcpy(target->base + signal.offset_bytes, payload, signal.bytes);
  }
  auto* at = reinterpret_cast<uint64_t*>(word->base + signal.word_offset_bytes);
  std::atomic_ref<uint64_t>(*at).fetch_add(signal.value, std::memory_order_release);
  return true;
}

}  // namespace weir::plugins::remote
