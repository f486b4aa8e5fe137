// SPDX-License-Identifier: Apache-2.0
// Symmetric memory of a communicator, and the agreement of all ranks to use it for a call.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/clock.h"
#include "core/comm/communicator.h"
#include "core/engine/slicing.h"

namespace weir::comm {

namespace {

constexpr uint32_t kOffsetBits = 48;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;
constexpr size_t kWindowsMax = 1024;

struct Extents {
  uint64_t input_bytes;
  uint64_t output_bytes;
};

Extents extents(const engine::Call& call, Rank rank_count) {
  const uint64_t one = call.count * element_bytes(call.type);
  switch (call.collective) {
    case Collective::kReduceScatter:
      return {one * rank_count, one};
    case Collective::kAllGather:
      return {one, one * rank_count};
    case Collective::kAllToAll:
      return {one * rank_count, one * rank_count};
    default:
      return {one, one};
  }
}

}  // namespace

Result<void*> Communicator::mem_alloc(uint64_t bytes) {
  std::lock_guard lock(lock_);
  if (failed_code_.load() != 0) return health();
  if (windows_.size() >= kWindowsMax) {
    return Status(Code::kNoMemory,
                  fmt::format("a communicator has {} windows at most", kWindowsMax));
  }
  if (bytes == 0 || bytes > kOffsetMask) {
    return invalid_argument(fmt::format("mem_alloc of {} bytes", bytes));
  }
  Window window{};
  const Secret key = secret_.derive(fmt::format("window {}", window_count_++));
  if ((context_.transport->caps.bits & WEIR_CAP_WINDOW) != 0) {
    const uint64_t deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ms_) * 1'000'000u;
    const weir_result_t result = context_.transport->window_open(
        context_.instance, key.bytes.data(), bytes, deadline_ns, &window.segment);
    if (result != WEIR_OK) {
      return Status(static_cast<Code>(result),
                    fmt::format("mem_alloc of {} bytes: {}", bytes, transport_error_));
    }
    window.shared = true;
  } else {
    // No rank can reach another's memory: ordinary memory, and operations copy as before.
    const uint64_t rounded = (bytes + 4095) / 4096 * 4096;
    window.segment.base = static_cast<unsigned char*>(std::aligned_alloc(4096, rounded));
    if (window.segment.base == nullptr) {
      return Status(Code::kNoMemory, fmt::format("mem_alloc of {} bytes", bytes));
    }
    std::memset(window.segment.base, 0, rounded);
    window.segment.bytes_per_rank = bytes;
  }
  const Rank part = window.shared ? context_.rank : 0;
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

void Communicator::close_window(const Window& window) {
  if (window.segment.base == nullptr) return;
  if (window.shared) {
    context_.transport->window_close(context_.instance, &window.segment);
  } else {
    std::free(window.segment.base);
  }
}

Status Communicator::mem_free(void* memory) {
  std::lock_guard lock(lock_);
  for (Window& window : windows_) {
    if (window.segment.base == nullptr) continue;
    const Rank part = window.shared ? context_.rank : 0;
    if (window.segment.base + part * window.segment.stride_bytes != memory) continue;
    close_window(window);
    window = Window{};
    while (!windows_.empty() && windows_.back().segment.base == nullptr) windows_.pop_back();
    return Status();
  }
  return invalid_argument(
      "mem_free of memory that mem_alloc did not give, or that is freed already");
}

uint64_t Communicator::window_word(const void* buffer, uint64_t bytes) const {
  const auto* address = static_cast<const unsigned char*>(buffer);
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (!windows_[i].shared) continue;
    const weir_segment_t& segment = windows_[i].segment;
    const unsigned char* own = segment.base + context_.rank * segment.stride_bytes;
    if (address >= own && address <= own + segment.bytes_per_rank &&
        bytes <= static_cast<uint64_t>(own + segment.bytes_per_rank - address)) {
      return uint64_t{i + 1} << kOffsetBits | static_cast<uint64_t>(address - own);
    }
  }
  return 0;
}

unsigned char* Communicator::at_peer(uint64_t word, Rank peer, uint64_t bytes) const {
  const uint64_t index = word >> kOffsetBits;
  const uint64_t offset = word & kOffsetMask;
  if (index == 0 || index > windows_.size()) return nullptr;
  const Window& window = windows_[index - 1];
  if (!window.shared || offset > window.segment.bytes_per_rank ||
      bytes > window.segment.bytes_per_rank - offset) {
    return nullptr;
  }
  return window.segment.base + peer * window.segment.stride_bytes + offset;
}

bool Communicator::agree_on_windows(Request& request, bool* windows) {
  const engine::Call& call = request.call;
  *windows = false;
  if (!context_.mapped() || context_.rank_count == 1 || call.scaled ||
      call.block_counts != nullptr || algo::find_algorithm(call.collective, "window") == nullptr) {
    return true;
  }
  const Extents bytes = extents(call, context_.rank_count);
  if (std::max(bytes.input_bytes, bytes.output_bytes) < (engine::is_rooted(call.collective)
                                                             ? engine::kRootedWindowBytesMin
                                                             : engine::kWindowBytesMin)) {
    return true;
  }

  const uint64_t next = context_.sequence + 1;
  const uint32_t mark = engine::fingerprint(call);
  if (!request.described) {
    context_.describe_next_call(call, mark, window_word(call.input, bytes.input_bytes),
                                window_word(call.output, bytes.output_bytes));
    context_.wake_sleepers();
    request.described = true;
  }
  bool all = true;
  peer_inputs_.resize(context_.rank_count);
  peer_outputs_.resize(context_.rank_count);
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[next % engine::kDescriptorCount];
    if (line.sequence.load(std::memory_order_acquire) != next) return false;
    if (line.fingerprint.load(std::memory_order_relaxed) != mark)
      return false;  // check_slowly tells
    peer_inputs_[p] =
        at_peer(line.input_window.load(std::memory_order_relaxed), p, bytes.input_bytes);
    peer_outputs_[p] =
        at_peer(line.output_window.load(std::memory_order_relaxed), p, bytes.output_bytes);
    all = all && peer_inputs_[p] != nullptr && peer_outputs_[p] != nullptr;
  }
  *windows = all;
  return true;
}

}  // namespace weir::comm
