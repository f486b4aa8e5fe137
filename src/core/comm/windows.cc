// SPDX-License-Identifier: Apache-2.0
// Symmetric memory of a communicator, and the agreement of all ranks to use it for a call.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/comm/communicator.h"
#include "core/engine/slicing.h"

namespace weir::comm {

namespace {

constexpr uint32_t kOffsetBits = 48;
constexpr uint64_t kOffsetMask = (uint64_t{1} << kOffsetBits) - 1;
constexpr size_t kWindowsMax = 1024;
// Numbers above are those of callers' own memory, each given once.
constexpr uint64_t kReachableMax = (uint64_t{1} << (64 - kOffsetBits)) - 1 - kWindowsMax;

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

uint64_t Communicator::add_reachable(std::vector<unsigned char*> addresses,
                                     std::vector<uint64_t> bytes) {
  std::lock_guard lock(lock_);
  WEIR_CHECK(addresses.size() == context_.rank_count && bytes.size() == context_.rank_count,
             "memory of each rank");
  if (reachable_count_ == kReachableMax) return 0;
  const uint64_t number = kWindowsMax + ++reachable_count_;
  reachable_.push_back({number, std::move(addresses), std::move(bytes)});
  return number;
}

void Communicator::withdraw_reachable(uint64_t number) {
  std::lock_guard lock(lock_);
  std::erase_if(reachable_, [&](const Reachable& it) { return it.number == number; });
}

uint64_t Communicator::window_word(const void* buffer, uint64_t bytes) const {
  const auto* address = static_cast<const unsigned char*>(buffer);
  const auto lies_in = [&](const unsigned char* begin, uint64_t length) {
    return begin != nullptr && address >= begin && address <= begin + length &&
           bytes <= static_cast<uint64_t>(begin + length - address);
  };
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (!windows_[i].shared) continue;
    const weir_segment_t& segment = windows_[i].segment;
    const unsigned char* own = segment.base + context_.rank * segment.stride_bytes;
    if (lies_in(own, segment.bytes_per_rank)) {
      return uint64_t{i + 1} << kOffsetBits | static_cast<uint64_t>(address - own);
    }
  }
  for (const Reachable& it : reachable_) {
    const unsigned char* own = it.addresses[context_.rank];
    if (lies_in(own, std::min(it.bytes[context_.rank], kOffsetMask))) {
      return it.number << kOffsetBits | static_cast<uint64_t>(address - own);
    }
  }
  return 0;
}

unsigned char* Communicator::at_peer(uint64_t word, uint64_t first, Rank peer,
                                     uint64_t bytes) const {
  const uint64_t index = word >> kOffsetBits;
  const uint64_t offset = word & kOffsetMask;
  const auto holds = [&](uint64_t length) { return offset <= length && bytes <= length - offset; };
  // Ranks withdraw their own memory when they like, so that one may know a number that another does
  // not. Where all name the same, this rank does too, and knows it.
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
    // A buffer that this rank does not use is where its other one is.
    const bool other = engine::is_rooted(call.collective) && context_.rank != call.root;
    const void* input =
        other && call.collective == Collective::kBroadcast ? call.output : call.input;
    const void* output = other && call.collective == Collective::kReduce ? call.input : call.output;
    context_.describe_next_call(call, mark, window_word(input, bytes.input_bytes),
                                window_word(output, bytes.output_bytes));
    context_.wake_sleepers();
    request.described = true;
  }
  bool all = true;
  peer_inputs_.resize(context_.rank_count);
  peer_outputs_.resize(context_.rank_count);
  uint64_t first_input = 0, first_output = 0;  // what rank 0 says
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const engine::DescriptorLine& line =
        context_.control(p).descriptor[next % engine::kDescriptorCount];
    if (line.sequence.load(std::memory_order_acquire) != next) return false;
    if (line.fingerprint.load(std::memory_order_relaxed) != mark)
      return false;  // check_slowly tells
    const uint64_t input = line.input_window.load(std::memory_order_relaxed);
    const uint64_t output = line.output_window.load(std::memory_order_relaxed);
    if (p == 0) first_input = input, first_output = output;
    peer_inputs_[p] = at_peer(input, first_input, p, bytes.input_bytes);
    peer_outputs_[p] = at_peer(output, first_output, p, bytes.output_bytes);
    all = all && peer_inputs_[p] != nullptr && peer_outputs_[p] != nullptr;
  }
  *windows = all;
  return true;
}

}  // namespace weir::comm
