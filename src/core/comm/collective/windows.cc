// SPDX-License-Identifier: Apache-2.0
#include "core/comm/collective/windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"

namespace weir::comm {

namespace {

constexpr uint32_t kOffsetBits = 48;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;
constexpr size_t kWindowsMax = 1024;
// Numbers above are those of callers' own memory, each given once.
constexpr uint64_t kNumberMax = (uint64_t{1} << (64 - kOffsetBits)) - 1;
// The last numbers are those of arenas, likewise.
constexpr uint64_t kArenasMax = 1024;
constexpr uint64_t kReachableMax = kNumberMax - kWindowsMax - kArenasMax;

bool is_of_arena(uint64_t number) { return number > kNumberMax - kArenasMax; }

}  // namespace

Status Windows::check_size(const char* function, uint64_t bytes) const {
  if (state_.failure.is_set()) return state_.failure.status();
  if (bytes == 0 || bytes > kOffsetMask) {
    return invalid_argument(
        fmt::format("{} of {} bytes: the size is 0 or too large", function, bytes));
  }
  return {};
}

Status Windows::open_segment(const char* function, uint64_t bytes, weir_segment_t* segment) {
  const Secret key = state_.secret.derive(fmt::format("window {}", window_count_++));
  const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(state_.timeout_ms) * 1'000'000u;
  const weir_result_t result = state_.context.transport->window_open(
      state_.context.instance, key.bytes.data(), bytes, deadline_ns, segment);
  if (result == WEIR_OK) return {};
  return Status(static_cast<Code>(result),
                fmt::format("{} of {} bytes: {}", function, bytes, state_.transport_error));
}

Result<void*> Windows::allocate(uint64_t bytes) {
  std::lock_guard lock(state_.lock);
  WEIR_RETURN_IF_ERROR(check_size("mem_alloc", bytes));
  if (windows_.size() >= kWindowsMax) {
    return Status(
        Code::kNoMemory,
        fmt::format("a communicator can have at most {} windows; free some with weir_mem_free",
                    kWindowsMax));
  }
  Window window{};
  if ((state_.context.transport->caps.bits & WEIR_CAP_WINDOW) != 0) {
    WEIR_RETURN_IF_ERROR(open_segment("mem_alloc", bytes, &window.segment));
    window.shared = true;
  } else {
    // No rank can reach another's memory: ordinary memory, and operations copy as before.
    const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
    window.segment.base = static_cast<unsigned char*>(std::aligned_alloc(4096, rounded));
    if (window.segment.base == nullptr) {
      return Status(Code::kNoMemory, fmt::format("mem_alloc of {} bytes: out of memory", bytes));
    }
    std::memset(window.segment.base, 0, rounded);
    window.segment.bytes_per_rank = bytes;
  }
  const Rank part = window.shared ? state_.rank() : 0;
  void* memory = window.segment.base + part * window.segment.stride_bytes;
  // Numbers are positions, the same on every rank: a freed place is taken again first.
  const auto hole = std::find_if(windows_.begin(), windows_.end(),
                                 [](const Window& w) { return w.segment.base == nullptr; });
  if (hole != windows_.end()) {
    *hole = window;
  } else {
    windows_.push_back(window);
  }
  return memory;
}

Result<std::shared_ptr<Arena>> Windows::create_arena(uint64_t bytes) {
  std::lock_guard lock(state_.lock);
  WEIR_RETURN_IF_ERROR(check_size("arena_create", bytes));
  if (arena_count_ == kArenasMax) {
    return Status(
        Code::kNoMemory,
        fmt::format("a communicator can make at most {} arenas, destroyed ones included; make "
                    "a larger one for many buffers",
                    kArenasMax));
  }
  const bool shared = (state_.context.transport->caps.bits & WEIR_CAP_WINDOW) != 0 &&
                      state_.context.mapped() && state_.rank_count() > 1;
  const auto add = [&](Result<std::shared_ptr<Arena>> made) -> Result<std::shared_ptr<Arena>> {
    // Also of one that this rank could not map: the others count it.
    const uint64_t number = kNumberMax - arena_count_++;
    if (!made.ok()) return made;
    arenas_.push_back({number, made.value()});
    return made;
  };
  if (!shared) return add(Arena::alone(bytes));
  weir_segment_t segment{};
  WEIR_RETURN_IF_ERROR(open_segment("arena_create", bytes, &segment));
  auto made = add(Arena::of_segment(segment, state_.rank(), state_.rank_count(), bytes));
  state_.context.transport->window_close(state_.context.instance, &segment);
  return made;
}

void Windows::destroy_arena(const Arena& arena) {
  std::lock_guard lock(state_.lock);
  std::erase_if(arenas_, [&](const NumberedArena& it) { return it.arena.get() == &arena; });
}

void Windows::add_touched(uint64_t bytes) {
  for (const NumberedArena& it : arenas_) {
    it.arena->touched_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void Windows::close(const Window& window) {
  if (window.segment.base == nullptr) return;
  if (window.shared) {
    state_.context.transport->window_close(state_.context.instance, &window.segment);
  } else {
    std::free(window.segment.base);
  }
}

Status Windows::free(void* memory) {
  std::lock_guard lock(state_.lock);
  for (Window& window : windows_) {
    if (window.segment.base == nullptr) continue;
    if (own_part(window) != memory) continue;
    close(window);
    window = Window{};
    while (!windows_.empty() && windows_.back().segment.base == nullptr) windows_.pop_back();
    return Status();
  }
  return invalid_argument(
      "mem_free: the memory was not allocated by weir_mem_alloc on this communicator, or was freed "
      "already");
}

const unsigned char* Windows::own_part(const Window& window) const {
  return window.segment.base + (window.shared ? state_.rank() : 0) * window.segment.stride_bytes;
}

uint64_t Windows::bytes_of(const void* memory) const {
  const std::lock_guard lock(state_.lock);
  for (const Window& window : windows_) {
    if (window.segment.base != nullptr && own_part(window) == memory) {
      return window.segment.bytes_per_rank;
    }
  }
  return 0;
}

void Windows::close_all(bool by_transport) {
  for (const Window& window : windows_) {
    if (by_transport || !window.shared) close(window);
  }
  windows_.clear();
  for (const NumberedArena& it : arenas_) it.arena->set_communicator(nullptr);
  arenas_.clear();
}

uint64_t Windows::add_reachable(std::vector<unsigned char*> addresses,
                                std::vector<uint64_t> bytes) {
  std::lock_guard lock(state_.lock);
  WEIR_CHECK(addresses.size() == state_.rank_count() && bytes.size() == state_.rank_count(),
             "memory of each rank");
  if (reachable_count_ == kReachableMax) return 0;
  const uint64_t number = kWindowsMax + ++reachable_count_;
  reachable_.push_back({number, std::move(addresses), std::move(bytes)});
  return number;
}

void Windows::withdraw_reachable(uint64_t number) {
  std::lock_guard lock(state_.lock);
  std::erase_if(reachable_, [&](const Reachable& it) { return it.number == number; });
}

uint64_t Windows::word_of(const void* buffer, uint64_t bytes, bool in_arenas) const {
  const auto* address = static_cast<const unsigned char*>(buffer);
  const auto lies_in = [&](const unsigned char* begin, uint64_t length) {
    return begin != nullptr && address >= begin && address <= begin + length &&
           bytes <= static_cast<uint64_t>(begin + length - address);
  };
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (!windows_[i].shared) continue;
    const weir_segment_t& segment = windows_[i].segment;
    const unsigned char* own = segment.base + state_.rank() * segment.stride_bytes;
    if (lies_in(own, segment.bytes_per_rank)) {
      return uint64_t{i + 1} << kOffsetBits | static_cast<uint64_t>(address - own);
    }
  }
  for (const NumberedArena& it : arenas_) {
    if (!in_arenas || !it.arena->is_shared()) continue;
    if (lies_in(it.arena->own(), it.arena->bytes())) {
      return it.number << kOffsetBits | static_cast<uint64_t>(address - it.arena->own());
    }
  }
  for (const Reachable& it : reachable_) {
    const unsigned char* own = it.addresses[state_.rank()];
    if (lies_in(own, std::min(it.bytes[state_.rank()], kOffsetMask))) {
      return it.number << kOffsetBits | static_cast<uint64_t>(address - own);
    }
  }
  return 0;
}

unsigned char* Windows::at_peer(uint64_t word, uint64_t first, Rank peer, uint64_t bytes) const {
  const uint64_t index = word >> kOffsetBits;
  const uint64_t offset = word & kOffsetMask;
  const auto holds = [&](uint64_t length) { return offset <= length && bytes <= length - offset; };
  if (is_of_arena(index)) {
    const auto found = std::find_if(arenas_.begin(), arenas_.end(),
                                    [&](const NumberedArena& it) { return it.number == index; });
    if (found == arenas_.end() || !found->arena->is_shared()) return nullptr;
    const weir_segment_t& segment = found->arena->segment();
    if (!holds(segment.stride_bytes)) return nullptr;
    return segment.base + peer * segment.stride_bytes + offset;
  }
  // Each rank withdraws its own memory at any time, so one rank may know a number that another does
  // not. If all name the same number, this rank does so, too, and thus knows it.
  if (std::max(index, first >> kOffsetBits) > kWindowsMax) {
    if (index != first >> kOffsetBits) return nullptr;
    const auto found = std::find_if(reachable_.begin(), reachable_.end(),
                                    [&](const Reachable& it) { return it.number == index; });
    if (found == reachable_.end() || !holds(found->bytes[peer])) return nullptr;
    return found->addresses[peer] + offset;
  }
  if (index == 0 || index > windows_.size()) return nullptr;
  const Window& window = windows_[index - 1];
  if (!window.shared || !holds(window.segment.bytes_per_rank)) return nullptr;
  return window.segment.base + peer * window.segment.stride_bytes + offset;
}

}  // namespace weir::comm
