// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/per_process.h"
#include "core/base/rank_list.h"
#include "core/comm/stream/cuda_error.h"
#include "core/engine/call.h"

namespace weir::comm {

namespace {

// Scratch that no stream of this process writes to; peers may still read what is in it while the
// flags with which it was used are in use.
struct Resting {
  cuda::Context context = nullptr;
  uint64_t bytes = 0;
  char* memory = nullptr;
  uint64_t number = 0;
  bool is_mapped = false;
  std::shared_ptr<StreamFlags> used_with;  // empty: nobody reads it
  uint32_t use_count = 0;                  // of those then

  bool is_read() const {
    return used_with != nullptr && !used_with->is_left() && used_with->use_count() == use_count;
  }
};
struct Registered {
  const StreamFlags* flags = nullptr;
  cuda::DevicePointer address = 0;
};
struct Kept {
  std::mutex lock;
  std::vector<Resting> resting;
  std::vector<Registered> registered;
};
// Streams may use it until the process ends: never destroyed.
Kept& kept() {
  static constinit PerProcess<Kept> it;
  return it.get();
}

}  // namespace

bool StreamMemory::take_resting(bool is_mapped) {
  Kept& it = kept();
  std::lock_guard lock(it.lock);
  const auto found = std::find_if(it.resting.begin(), it.resting.end(), [&](const Resting& one) {
    return one.context == context_ && one.bytes == scratch_bytes_ && one.is_mapped == is_mapped &&
           !one.is_read();
  });
  if (found == it.resting.end()) return false;
  own_scratch_ = found->memory;
  scratch_number_ = found->number;
  scratch_is_mapped_ = is_mapped;
  it.resting.erase(found);
  return true;
}

bool StreamMemory::register_flags(std::string* reason) {
  Kept& it = kept();
  std::lock_guard lock(it.lock);
  for (const Registered& known : it.registered) {
    if (known.flags != flags_.get()) continue;
    flags_base_ = known.address;
    return true;
  }
  const cuda::RelaxedCapture relaxed(driver_);
  cuda::Result result = driver_.cuMemHostRegister_v2(flags_->memory(), flags_->bytes(),
                                                     cuda::kHostPortable | cuda::kHostDeviceMap);
  const char* call = "cuMemHostRegister";
  if (result == cuda::kSuccess) {
    call = "cuMemHostGetDevicePointer";
    result = driver_.cuMemHostGetDevicePointer_v2(&flags_base_, flags_->memory(), 0);
  }
  if (result != cuda::kSuccess) {
    *reason = cuda_failed(driver_, "flags of streams", call, result).text();
    return false;
  }
  it.registered.push_back({flags_.get(), flags_base_});
  return true;
}

StreamMemory::~StreamMemory() {
  const bool spoiled = spoiled_.load(std::memory_order_acquire);
  const bool lost = lost_.load(std::memory_order_acquire);
  if (entered_ && !lost) flags_->leave();
  for (const Own& own : own_streams_) {
    const cuda::ContextScope scope(driver_, nullptr, own.context);
    const cuda::RelaxedCapture relaxed(driver_);
    (void)driver_.cuStreamDestroy_v2(own.stream);
  }
  if (own_scratch_ == nullptr || lost) return;
  try {
    Kept& it = kept();
    std::lock_guard lock(it.lock);
    Resting resting{
        context_, scratch_bytes_, own_scratch_, scratch_number_, scratch_is_mapped_, nullptr, 0};
    // What peers read of a communicator that has failed does not matter.
    if (entered_ && !spoiled) {
      resting.used_with = flags_;
      resting.use_count = use_count_;
    }
    it.resting.push_back(std::move(resting));
  } catch (...) {
    // Without memory for the list the scratch is lost.
  }
}

std::string StreamMemory::why_context_is_too_far() const {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  const bool reaches_all =
      context == context_ ||
      std::count(contexts_in_process_.begin(), contexts_in_process_.end(), uint64_t{0}) == 0;
  return reaches_all ? ""
                     : "a stream of another device than the communicator's does not reach the "
                       "memory of other processes; make communicators on the device whose streams "
                       "are used";
}

const DeviceKernels* StreamMemory::kernels(std::string* reason) {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  std::lock_guard lock(lock_);
  for (const auto& [known, kernels] : kernels_) {
    if (known == context) return kernels;
  }
  if (context != context_) {
    *reason = why_context_is_too_far();
    if (!reason->empty()) return nullptr;
    const cuda::RelaxedCapture relaxed(driver_);
    for (const uint64_t other : contexts_in_process_) {
      auto* const theirs = reinterpret_cast<cuda::Context>(static_cast<uintptr_t>(other));
      if (theirs == context) continue;
      const cuda::Result result = driver_.cuCtxEnablePeerAccess(theirs, 0);
      if (result != cuda::kSuccess && result != cuda::kErrorPeerAlreadyEnabled) {
        *reason = cuda_failed(driver_, "its device", "cuCtxEnablePeerAccess", result).text();
        return nullptr;
      }
    }
  }
  const DeviceKernels* found = device_kernels(driver_, reason);
  if (found != nullptr) kernels_.emplace_back(context, found);
  return found;
}

Status StreamMemory::own_stream(const char* function, OwnStream which, cuda::Stream* stream,
                                size_t index) {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  std::lock_guard lock(lock_);
  for (const Own& own : own_streams_) {
    if (own.context != context || own.which != which || own.index != index) continue;
    *stream = own.stream;
    return {};
  }
  WEIR_RETURN_IF_ERROR(make_own_stream(function, {context, which, index, nullptr, {}}));
  *stream = own_streams_.back().stream;
  return {};
}

Status StreamMemory::fork_stream(const char* function, const Capture& capture, StreamLease* lease) {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  const auto fits = [&](const Own& own) {
    if (own.context != context || own.which != OwnStream::kForked || !own.lease.expired()) {
      return false;
    }
    Capture its;
    if (!capture_of(driver_, function, own.stream, &its).ok()) return false;
    return !its.active || (capture.active && its.number == capture.number);
  };
  std::lock_guard lock(lock_);
  auto found = std::find_if(own_streams_.begin(), own_streams_.end(), fits);
  if (found == own_streams_.end()) {
    WEIR_RETURN_IF_ERROR(make_own_stream(function, {context, OwnStream::kForked, 0, nullptr, {}}));
    found = own_streams_.end() - 1;
  }
  *lease = std::make_shared<const cuda::Stream>(found->stream);
  found->lease = *lease;
  return {};
}

Status StreamMemory::make_own_stream(const char* function, const Own& own) {
  const cuda::RelaxedCapture relaxed(driver_);
  Own made = own;
  const cuda::Result result = driver_.cuStreamCreate(&made.stream, cuda::kStreamNonBlocking);
  if (result != cuda::kSuccess) return cuda_failed(driver_, function, "cuStreamCreate", result);
  own_streams_.push_back(made);
  return {};
}

void StreamMemory::add_window(std::shared_ptr<const DeviceWindow> window) {
  std::lock_guard lock(lock_);
  windows_.push_back(std::move(window));
}

std::shared_ptr<const DeviceWindow> StreamMemory::take_window(const DeviceWindow* window) {
  std::lock_guard lock(lock_);
  const auto found = std::find_if(windows_.begin(), windows_.end(),
                                  [&](const auto& it) { return it.get() == window; });
  if (found == windows_.end()) return nullptr;
  std::shared_ptr<const DeviceWindow> taken = std::move(*found);
  windows_.erase(found);
  return taken;
}

// Of several the first, as on all ranks.
DeviceWindow::Place StreamMemory::find_window(const void* memory, uint64_t bytes) {
  std::lock_guard lock(lock_);
  DeviceWindow::Place place;
  for (const auto& it : windows_) {
    if (!it->holds(memory, bytes, &place.offset)) continue;
    place.window = it;
    break;
  }
  return place;
}

template <typename Visit>
void StreamMemory::for_each_message_flag(Visit&& visit) const {
  for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
    for (uint32_t message = 0; message < StreamSchedule::kMessagesMax; ++message) {
      visit(flags_->flag(StreamProgram::message_flag(rank_count(), slot, rank_, message)));
    }
  }
}

void StreamMemory::release(uint32_t fingerprint) const {
  const Rank n = rank_count();
  for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
    for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
      for (Rank peer = 0; peer < n; ++peer) {
        flags_->flag(StreamProgram::full_flag(n, phase, slot, peer, rank_)).store(fingerprint);
        flags_->flag(StreamProgram::empty_flag(n, phase, slot, rank_, peer)).store(1);
      }
    }
  }
  for_each_message_flag([&](std::atomic<uint32_t>& flag) { flag.store(fingerprint); });
}

std::vector<Rank> StreamMemory::without(const std::vector<Rank>& writers, FlagOf flag_of,
                                        bool is_set) const {
  std::vector<Rank> found;
  for (const Rank writer : writers) {
    bool any = false;
    for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
      for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
        const uint32_t flag = flag_of(rank_count(), phase, slot, writer, rank_);
        any = any || (flags_->flag(flag).load() != 0) == is_set;
      }
    }
    if (!any) found.push_back(writer);
  }
  return found;
}

std::vector<Rank> StreamMemory::silent_among(const std::vector<Rank>& writers) const {
  return without(writers, StreamProgram::empty_flag, false);
}

// A rank puts, and another takes, in the same order.
std::vector<Rank> StreamMemory::awaited_among(const std::vector<Rank>& writers) const {
  return without(writers, StreamProgram::full_flag, true);
}

std::vector<Rank> StreamMemory::others_among(const std::vector<Rank>& writers,
                                             uint32_t fingerprint) const {
  std::vector<Rank> others;
  for (const Rank writer : writers) {
    bool any = false;
    for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
      for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
        const uint32_t full = StreamProgram::full_flag(rank_count(), phase, slot, writer, rank_);
        const uint32_t value = flags_->flag(full).load();
        any = any || (value != 0 && value != fingerprint);
      }
    }
    if (any) others.push_back(writer);
  }
  return others;
}

std::vector<Rank> StreamMemory::slow_readers() const {
  std::vector<Rank> slow;
  for (Rank reader = 0; reader < rank_count(); ++reader) {
    bool any = false;
    for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
      for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
        const uint32_t empty = StreamProgram::empty_flag(rank_count(), phase, slot, rank_, reader);
        any = any || (reader != rank_ && flags_->flag(empty).load() == 0);
      }
    }
    if (any) slow.push_back(reader);
  }
  return slow;
}

std::string StreamMemory::calls_ahead() const {
  const uint64_t next = call_count_.load() + 1;
  std::map<std::string, std::vector<Rank>> calls;
  for (Rank rank = 0; rank < rank_count(); ++rank) {
    if (flags_->captured(rank).load() != flags_->captured(rank_).load()) return "";
    uint64_t what = 0;
    uint64_t count = 0;
    uint32_t fingerprint = 0;
    if (rank == rank_ || !flags_->read_call(rank, next, &what, &count, &fingerprint)) continue;
    calls[engine::describe(what, count)].push_back(rank);
  }
  std::string text;
  for (const auto& [what, ranks] : calls) {
    text += fmt::format("; {} called {} on memory of a device", describe_ranks(ranks), what);
  }
  return text;
}

uint64_t StreamMemory::progress_mark() const {
  const Rank n = rank_count();
  uint64_t mark = 0;
  for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
    for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
      for (Rank peer = 0; peer < n; ++peer) {
        mark = mark * 1099511628211u +
               flags_->flag(StreamProgram::full_flag(n, phase, slot, peer, rank_)).load();
        mark = mark * 1099511628211u +
               flags_->flag(StreamProgram::empty_flag(n, phase, slot, rank_, peer)).load();
      }
    }
  }
  for_each_message_flag(
      [&](const std::atomic<uint32_t>& flag) { mark = mark * 1099511628211u + flag.load(); });
  return mark;
}

}  // namespace weir::comm
