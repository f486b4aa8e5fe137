// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/reach.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/clock.h"
#include "core/base/per_process.h"
#include "core/comm/stream/cuda_error.h"
#include "core/comm/stream/exports.h"
#include "core/comm/stream/imports.h"

namespace weir::comm {

namespace {

// Another process's allocation in this one.
struct Mapping {
  cuda::Context context = nullptr;
  ProcessNumber owner{};
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint64_t allocation = 0;
  uint32_t shared = kSharedNot;
  cuda::DevicePointer pointer = 0;
  size_t user_count = 0;

  bool is(cuda::Context wanted, const ProcessNumber& of, const DeviceRange& range) const {
    return context == wanted && owner == of && allocation == range.allocation &&
           base == range.base && bytes == range.bytes && shared == range.shared;
  }
};

static_assert(sizeof(Offers::Key) <= sizeof(cuda::IpcHandle));

struct Mappings {
  std::mutex lock;
  std::vector<Mapping> all;
};

// Threads may use it until the process ends, when CUDA frees everything: never destroyed.
Mappings& mappings() {
  static constinit PerProcess<Mappings> it;
  return it.get();
}

bool lies_in(const DeviceRange& range, uint64_t bytes) {
  return range.address >= range.base && range.address - range.base <= range.bytes &&
         bytes <= range.bytes - (range.address - range.base) &&
         range.bytes <= UINT64_MAX - range.base;
}

char* pointer_of(uint64_t address) {
  return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
}

// The list of the allocations, and a descriptor of each.
bool fetch_pieces(const DeviceRange& range, const FetchDescriptor& fetch,
                  std::vector<uint64_t>* lengths, std::vector<OwnedDescriptor>* pieces,
                  std::string* reason) {
  Offers::Key first{};
  std::memcpy(first.data(), range.handle.reserved, first.size());
  for (uint32_t i = 0; i <= range.piece_count && i <= kPiecesMax; ++i) {
    const Result<int> fetched = fetch(key_of(first, i));
    if (!fetched.ok()) {
      *reason = fetched.status().text();
      return false;
    }
    pieces->emplace_back(fetched.value());
    if (i > 0) continue;
    *lengths = read_pieces(pieces->back(), range.piece_count, range.bytes);
    pieces->clear();
    if (!lengths->empty()) continue;
    *reason = "the description that its owner sent is invalid";
    return false;
  }
  return true;
}

bool open_mapping(const cuda::Driver& driver, const DeviceRange& range,
                  const FetchDescriptor& fetch, Mapping* made, std::string* reason) {
  const cuda::RelaxedCapture relaxed(driver);
  if (range.shared == kSharedByDescriptors) {
    std::vector<uint64_t> lengths;
    std::vector<OwnedDescriptor> pieces;
    if (!fetch_pieces(range, fetch, &lengths, &pieces, reason)) return false;
    Imported imported = import_memory(driver, lengths, pieces, range.bytes);
    made->pointer = imported.pointer;
    *reason = std::move(imported.reason);
    return made->pointer != 0;
  }
  if (!driver.can_share()) {
    *reason = "this CUDA has no IPC";
    return false;
  }
  const cuda::Result result =
      driver.cuIpcOpenMemHandle_v2(&made->pointer, range.handle, cuda::kIpcLazyEnablePeerAccess);
  if (result == cuda::kSuccess) return true;
  *reason = cuda_failed(driver, "CUDA IPC", "cuIpcOpenMemHandle", result).text();
  return false;
}

void close_mapping(const cuda::Driver& driver, const Mapping& mapping) {
  const cuda::RelaxedCapture relaxed(driver);
  if (mapping.shared == kSharedByDescriptors) {
    end_import(driver, mapping.pointer, mapping.bytes);
  } else if (driver.cuIpcCloseMemHandle != nullptr) {
    (void)driver.cuIpcCloseMemHandle(mapping.pointer);
  }
}

// Whether the program has given the device access to all of it.
bool is_given(const cuda::Driver& driver, cuda::Device device, uint64_t address, uint64_t bytes) {
  if (driver.cuMemGetAccess == nullptr || driver.cuMemGetAddressRange_v2 == nullptr) return false;
  const cuda::MemoryLocation here{cuda::kLocationDevice, device};
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    unsigned long long flags = 0;
    cuda::DevicePointer base = 0;
    size_t length = 0;
    if (driver.cuMemGetAccess(&flags, &here, at) != cuda::kSuccess ||
        flags != cuda::kAccessReadWrite ||
        driver.cuMemGetAddressRange_v2(&base, &length, at) != cuda::kSuccess || base > at ||
        length <= at - base) {
      return false;
    }
    at = base + length;
  }
  return true;
}

}  // namespace

Status Offers::add(const Key& key, int descriptor) {
  WEIR_RETURN_IF_ERROR(network_->offer(key, descriptor));
  keys_.push_back(key);
  return Status();
}

void Offers::withdraw() {
  for (const Key& key : std::exchange(keys_, {})) network_->withdraw(key);
}

Offers::Key key_of(const Offers::Key& first, uint32_t index) {
  Offers::Key key = first;
  key[0] = static_cast<unsigned char>(key[0] ^ (index & 0xff));
  key[1] = static_cast<unsigned char>(key[1] ^ (index >> 8));
  return key;
}

FetchDescriptor fetch_from(control::Network* network, Rank owner) {
  constexpr uint64_t kFetchNs = 10'000'000'000;
  return [network, owner](const Offers::Key& key) {
    return network->fetch(owner, key, now_ns() + kFetchNs);
  };
}

uint64_t next_number() {
  static std::atomic<uint64_t> latest{0};
  return ++latest;
}

namespace {

Refusal offer_memory(const cuda::Driver& driver, uint64_t bytes, Offers* offers,
                     DeviceRange* range) {
  Exported exported;
  const Refusal refusal = export_memory(driver, range->address, bytes, &exported);
  if (refusal != Refusal::kNone) return refusal;
  Offers::Key first{};
  if (getrandom(first.data(), first.size(), 0) != static_cast<ssize_t>(first.size()) ||
      !offers->add(first, exported.list.get()).ok()) {
    return Refusal::kSystem;
  }
  for (uint32_t i = 0; i < exported.pieces.size(); ++i) {
    if (!offers->add(key_of(first, i + 1), exported.pieces[i].get()).ok()) return Refusal::kSystem;
  }
  range->base = exported.base;
  range->bytes = exported.bytes;
  range->piece_count = static_cast<uint32_t>(exported.pieces.size());
  range->shared = kSharedByDescriptors;
  std::memcpy(range->handle.reserved, first.data(), first.size());
  return Refusal::kNone;
}

}  // namespace

DeviceRange range_of(const cuda::Driver& driver, const void* memory, uint64_t bytes, Offers* offers,
                     uint64_t number) {
  DeviceRange range;
  range.address = reinterpret_cast<uintptr_t>(memory);
  if (offers == nullptr) return range;
  const cuda::RelaxedCapture relaxed(driver);
  cuda::DevicePointer base = 0;
  size_t range_bytes = 0;
  unsigned long long buffer = 0;
  unsigned capable = 0;
  int attributes[] = {cuda::kAttributeRangeStart, cuda::kAttributeRangeBytes,
                      cuda::kAttributeBufferId, cuda::kAttributeIsIpcCapable};
  void* data[] = {&base, &range_bytes, &buffer, &capable};
  if (driver.cuPointerGetAttributes(4, attributes, data, range.address) != cuda::kSuccess) {
    range.refusal = static_cast<uint32_t>(Refusal::kUnknown);
    return range;
  }
  if (capable != 0 && driver.can_share() &&
      driver.cuIpcGetMemHandle(&range.handle, base) == cuda::kSuccess) {
    range.base = base;
    range.bytes = range_bytes;
    range.allocation = buffer;
    range.shared = kSharedByIpc;
    return range;
  }
  range.allocation = number;
  range.refusal = static_cast<uint32_t>(offer_memory(driver, bytes, offers, &range));
  return range;
}

Reached reach(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range,
              uint64_t bytes, const FetchDescriptor& fetch) {
  Reached it;
  if (owner == this_process()) {
    it.address = pointer_of(range.address);
    return it;
  }
  if (range.shared != kSharedByIpc && range.shared != kSharedByDescriptors) {
    it.reason = text_of(static_cast<Refusal>(range.refusal));
    return it;
  }
  if (!lies_in(range, bytes)) {
    it.reason = "it extends beyond the end of the allocation in which it begins";
    return it;
  }
  cuda::Context context = nullptr;
  (void)driver.cuCtxGetCurrent(&context);
  Mappings& all = mappings();
  std::lock_guard lock(all.lock);
  auto known = std::find_if(all.all.begin(), all.all.end(), [&](const Mapping& mapping) {
    return mapping.is(context, owner, range);
  });
  if (known == all.all.end()) {
    if (all.all.size() >= kMappingsMax) {
      it.reason = fmt::format(
          "this process has mapped {} allocations of other processes already, which is the limit",
          kMappingsMax);
      return it;
    }
    Mapping made{context, owner, range.base, range.bytes, range.allocation, range.shared, 0, 0};
    all.all.reserve(all.all.size() + 1);  // so that a lack of memory loses nothing
    if (!open_mapping(driver, range, fetch, &made, &it.reason)) return it;
    known = all.all.insert(all.all.end(), made);
  }
  ++known->user_count;
  it.address = pointer_of(known->pointer + (range.address - range.base));
  return it;
}

void leave(const cuda::Driver& driver, const ProcessNumber& owner, const DeviceRange& range) {
  if (owner == this_process()) return;
  cuda::Context context = nullptr;
  (void)driver.cuCtxGetCurrent(&context);
  Mapping ended;
  {
    Mappings& all = mappings();
    std::lock_guard lock(all.lock);
    const auto known = std::find_if(all.all.begin(), all.all.end(), [&](const Mapping& mapping) {
      return mapping.is(context, owner, range);
    });
    if (known == all.all.end() || --known->user_count > 0) return;
    ended = *known;
    all.all.erase(known);
  }
  // It may wait for the device, which may wait for a rank of this process that needs the lock.
  close_mapping(driver, ended);
}

Reached reach_by_kernel(const cuda::Driver& driver, const ProcessNumber& owner,
                        const DeviceRange& range, uint64_t bytes, const FetchDescriptor& fetch) {
  Reached it = reach(driver, owner, range, bytes, fetch);
  // Another process's memory has been mapped for the context.
  if (it.address == nullptr || owner != this_process()) return it;
  cuda::Context mine = nullptr;
  cuda::Device here = -1;
  (void)driver.cuCtxGetCurrent(&mine);
  (void)driver.cuCtxGetDevice(&here);
  cuda::Context theirs = nullptr;
  cuda::Device there = -1;
  unsigned capable = 0;
  int attributes[] = {cuda::kAttributeContext, cuda::kAttributeDeviceOrdinal,
                      cuda::kAttributeIsIpcCapable};
  void* data[] = {&theirs, &there, &capable};
  cuda::Result result = driver.cuPointerGetAttributes(3, attributes, data, range.address);
  if (result != cuda::kSuccess) {
    return {nullptr, cuda_failed(driver, "its place", "cuPointerGetAttributes", result).text()};
  }
  if (theirs == mine || (theirs == nullptr && there == here)) return it;
  // Access between contexts covers memory of cuMemAlloc; for other memory the program decides.
  if (theirs == nullptr || capable == 0) {
    if (is_given(driver, here, range.address, bytes)) return it;
    return {nullptr,
            "it is on another device, and belongs to a memory pool or was mapped without access "
            "for this device (cuMemSetAccess)"};
  }
  const cuda::RelaxedCapture relaxed(driver);
  result = driver.cuCtxEnablePeerAccess(theirs, 0);
  if (result == cuda::kSuccess || result == cuda::kErrorPeerAlreadyEnabled) return it;
  return {nullptr, cuda_failed(driver, "its device", "cuCtxEnablePeerAccess", result).text()};
}

}  // namespace weir::comm
