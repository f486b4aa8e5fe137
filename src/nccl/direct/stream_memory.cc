// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/stream_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "api/handles.h"
#include "core/base/per_process.h"
#include "core/base/settings.h"
#include "cuda/kernels/reduce_arguments.h"
#include "nccl/direct/reach.h"

namespace weir::nccl {

namespace {

using comm::StreamFlags;
using comm::StreamProgram;

// What each rank tells the others.
struct Entry {
  uint32_t ok;       // 1: it can take part so far
  uint32_t kernels;  // 1: it has them
  uint64_t slot_bytes;
  uint64_t message_slot_bytes;
  uint64_t context;      // in its process
  uint32_t connections;  // hardware queues of its device; 0: without an end
  DirectChoice choice;
  ProcessNumber process;
  comm::StreamFlagsKey key;  // of rank 0's flags
  DeviceRange scratch;
};

// Scratch that no stream of this process writes to; peers may still read what is in it while the
// flags with which it was used are in use.
struct Resting {
  cuda::Context context = nullptr;
  uint64_t bytes = 0;
  char* memory = nullptr;
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

char* take_resting(cuda::Context context, uint64_t bytes) {
  Kept& it = kept();
  std::lock_guard lock(it.lock);
  const auto found = std::find_if(it.resting.begin(), it.resting.end(), [&](const Resting& one) {
    return one.context == context && one.bytes == bytes && !one.is_read();
  });
  if (found == it.resting.end()) return nullptr;
  char* memory = found->memory;
  it.resting.erase(found);
  return memory;
}

bool register_flags(const cuda::Driver& driver, const StreamFlags& flags,
                    cuda::DevicePointer* address, std::string* reason) {
  Kept& it = kept();
  std::lock_guard lock(it.lock);
  for (const Registered& known : it.registered) {
    if (known.flags != &flags) continue;
    *address = known.address;
    return true;
  }
  const cuda::RelaxedCapture relaxed(driver);
  cuda::Result result = driver.cuMemHostRegister_v2(flags.memory(), flags.bytes(),
                                                    cuda::kHostPortable | cuda::kHostDeviceMap);
  const char* call = "cuMemHostRegister";
  if (result == cuda::kSuccess) {
    call = "cuMemHostGetDevicePointer";
    result = driver.cuMemHostGetDevicePointer_v2(address, flags.memory(), 0);
  }
  if (result != cuda::kSuccess) {
    *reason = cuda::failed(driver, "flags of streams", call, result).text;
    return false;
  }
  it.registered.push_back({&flags, *address});
  return true;
}

uint64_t slot_bytes_wanted(Rank rank_count) {
  const auto& settings = process_settings();
  const auto bytes = settings.ok() ? static_cast<uint64_t>(settings.value().scratch_bytes) : 0;
  const uint64_t slot =
      bytes / (StreamProgram::kSlots + 1) / StreamProgram::kAlign * StreamProgram::kAlign;
  return std::max(slot, StreamProgram::slot_bytes_min(rank_count));
}

// So that the slots for messages take no more than those for collectives, where these are not the
// least.
uint64_t message_slot_bytes_wanted(Rank rank_count) {
  const auto& settings = process_settings();
  const auto bytes = settings.ok() ? static_cast<uint64_t>(settings.value().scratch_bytes) : 0;
  const uint64_t slots = uint64_t{rank_count} * kernels::kMessageLanes * kernels::kMessageSlots;
  const uint64_t slot = bytes / slots / kernels::kMessageAlign * kernels::kMessageAlign;
  return std::clamp(slot, kernels::kMessageAlign, kernels::kMessageSlotBytesMax);
}

// Of the ranks of one process that share a device, one of those that have the fewest queues each.
struct Sharing {
  size_t ranks = 0;  // 0: nobody shares one
  Rank rank = 0;
  uint32_t connections = 0;
  bool demanded = false;

  bool is_too_much() const { return demanded && connections < ranks; }
};

Sharing find_sharing(const std::vector<Entry>& all) {
  Sharing found;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto shares = [&](const Entry& other) {
      return other.process == all[rank].process && other.context == all[rank].context;
    };
    const auto ranks = static_cast<size_t>(std::count_if(all.begin(), all.end(), shares));
    if (ranks < 2 || all[rank].connections == 0 || ranks <= found.ranks) continue;
    found = {ranks, static_cast<Rank>(rank), all[rank].connections, is_demanded(all[rank].choice)};
  }
  return found;
}

constexpr int64_t kFetchMs = 10000;

}  // namespace

bool StreamMemory::prepare(Comm& comm, uint64_t scratch_bytes, std::string* reason) {
  if (!driver_.can_stream()) {
    *reason = "this CUDA lacks functions for work on streams alone";
    return false;
  }
  if (static_cast<uint32_t>(comm.rank_count()) > kernels::kRanksMax) {
    *reason = fmt::format("{} ranks of one machine are more than {}", comm.rank_count(),
                          kernels::kRanksMax);
    return false;
  }
  context_ = cuda::context_on(driver_, comm.device());
  // A thread without a context uses the device's primary one, as CUDA's runtime does.
  if (context_ == nullptr &&
      driver_.cuDevicePrimaryCtxRetain(&context_, comm.device()) != cuda::kSuccess) {
    *reason = fmt::format("device {} has no context", comm.device());
    return false;
  }
  const cuda::ContextScope scope(driver_, nullptr, context_);
  own_scratch_ = take_resting(context_, scratch_bytes);
  if (own_scratch_ == nullptr) {
    const cuda::RelaxedCapture relaxed(driver_);
    cuda::DevicePointer memory = 0;
    const cuda::Result result = driver_.cuMemAlloc_v2(&memory, scratch_bytes);
    if (result != cuda::kSuccess) {
      *reason = cuda::failed(driver_, "scratch on the device", "cuMemAlloc", result).text;
      return false;
    }
    own_scratch_ = reinterpret_cast<char*>(static_cast<uintptr_t>(memory));
  }
  scratch_bytes_ = scratch_bytes;
  has_kernels_ = device_kernels(driver_, reason) != nullptr;
  return true;
}

Outcome StreamMemory::make(const char* function, Comm& comm, DirectChoice choice,
                           std::shared_ptr<StreamMemory>* made, std::string* reason) {
  const auto n = static_cast<Rank>(comm.rank_count());
  const auto me = static_cast<Rank>(comm.rank());
  const cuda::Driver* driver = cuda::driver_in_use();
  std::shared_ptr<StreamMemory> it(new StreamMemory(*driver));
  it->rank_ = me;
  Entry mine{};
  mine.slot_bytes = slot_bytes_wanted(n);
  mine.message_slot_bytes = message_slot_bytes_wanted(n);
  const uint64_t scratch_bytes = (StreamProgram::kSlots + 1) * mine.slot_bytes +
                                 StreamProgram::kAlign + n * kSlotsOfPair * mine.message_slot_bytes;
  mine.process = this_process();
  mine.connections = cuda::hardware_queue_count(*driver);
  mine.choice = choice;
  bool ok = it->prepare(comm, scratch_bytes, reason);
  int descriptor = -1;
  if (ok && me == 0) {
    auto flags = StreamFlags::make(n, &mine.key, &descriptor);
    if (flags.ok()) {
      it->flags_ = flags.take();
      it->entered_ = true;
      const Status offered = comm.weir()->comm->offer_descriptor(mine.key, descriptor);
      if (!offered.ok()) *reason = offered.text();
      ok = offered.ok();
    } else {
      *reason = flags.status().text();
      ok = false;
    }
  }
  if (ok) {
    const cuda::ContextScope scope(*driver, nullptr, it->context_);
    mine.scratch =
        range_of(*driver, it->own_scratch_, !comm.devices().in_one_process(), scratch_bytes);
    mine.context = reinterpret_cast<uintptr_t>(it->context_);
  }
  mine.ok = ok ? 1 : 0;
  mine.kernels = it->has_kernels_ ? 1 : 0;
  std::vector<Entry> all(n);
  weir_result_t told = gather_for_setup(comm.weir(), &mine, all.data(), sizeof mine);
  if (told != WEIR_OK) return comm.outcome(function, told);
  it->slot_bytes_ = mine.slot_bytes;
  it->message_slot_bytes_ = mine.message_slot_bytes;
  for (const Entry& one : all) {
    if (one.ok != 1) ok = false;
    if (one.kernels != 1) it->has_kernels_ = false;
    it->slot_bytes_ = std::min(it->slot_bytes_, one.slot_bytes);
    it->message_slot_bytes_ = std::min(it->message_slot_bytes_, one.message_slot_bytes);
  }
  if (const Sharing sharing = find_sharing(all); ok && sharing.ranks > 0) {
    const std::string what = fmt::format(
        "{} ranks, of which rank {} is one, share a process, a device and its {} hardware queues, "
        "in which the wait of one may stand before the work of another; give each a process or a "
        "device of its own{}",
        sharing.ranks, sharing.rank, sharing.connections,
        sharing.is_too_much() ? ", or set CUDA_DEVICE_MAX_CONNECTIONS to at least their number"
                              : ", or set WEIR_DIRECT=1");
    if (sharing.is_too_much()) {
      return invalid_usage(fmt::format("{}, rank {} of {}: {}", function, me, n, what));
    }
    if (!sharing.demanded) {
      ok = false;
      if (me == sharing.rank) *reason = what;
    }
  }
  if (ok) {
    const cuda::ContextScope scope(*driver, nullptr, it->context_);
    if (it->flags_ == nullptr) it->flags_ = StreamFlags::find(all[0].key);
    if (it->flags_ == nullptr) {
      auto fetched = comm.weir()->comm->fetch_descriptor(0, all[0].key, kFetchMs);
      if (fetched.ok()) {
        auto mapped = StreamFlags::map(all[0].key, fetched.value(), n);
        (void)close(fetched.value());
        if (mapped.ok()) it->flags_ = mapped.take();
        if (!mapped.ok()) *reason = mapped.status().text();
      } else {
        *reason = fetched.status().text();
      }
    }
    if (it->flags_ != nullptr && !it->entered_) {
      it->flags_->enter();
      it->entered_ = true;
    }
    if (it->flags_ != nullptr) it->use_count_ = it->flags_->use_count();
    ok = it->flags_ != nullptr && register_flags(*driver, *it->flags_, &it->flags_base_, reason);
    for (Rank rank = 0; rank < n && ok; ++rank) {
      const bool here = all[rank].process == mine.process;
      it->contexts_in_process_.push_back(here ? all[rank].context : 0);
      if (rank == me) {
        it->scratch_.push_back(it->own_scratch_);
        continue;
      }
      const Reached reached =
          reach_by_kernel(*driver, all[rank].process, all[rank].scratch, scratch_bytes);
      ok = reached.address != nullptr;
      if (!ok) *reason = fmt::format("rank {}'s scratch: {}", rank, reached.reason);
      it->scratch_.push_back(reached.address);
    }
  }
  uint32_t able = ok ? 1 : 0;
  std::vector<uint32_t> votes(n);
  told = gather_for_setup(comm.weir(), &able, votes.data(), sizeof able);
  if (told != WEIR_OK) return comm.outcome(function, told);
  // All have fetched it.
  if (descriptor >= 0) comm.weir()->comm->withdraw_descriptor(mine.key);
  if (std::count(votes.begin(), votes.end(), 1u) != static_cast<std::ptrdiff_t>(n)) return {};
  *made = std::move(it);
  return {};
}

StreamMemory::~StreamMemory() {
  const bool spoiled = spoiled_.load(std::memory_order_acquire);
  if (entered_ && !spoiled) flags_->leave();
  for (const Own& own : own_streams_) {
    const cuda::ContextScope scope(driver_, nullptr, own.context);
    const cuda::RelaxedCapture relaxed(driver_);
    (void)driver_.cuStreamDestroy_v2(own.stream);
  }
  if (own_scratch_ == nullptr) return;
  try {
    Kept& it = kept();
    std::lock_guard lock(it.lock);
    Resting resting{context_, scratch_bytes_, own_scratch_, nullptr, 0};
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

const DeviceKernels* StreamMemory::kernels(std::string* reason) {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  std::lock_guard lock(lock_);
  for (const auto& [known, kernels] : kernels_) {
    if (known == context) return kernels;
  }
  if (context != context_) {
    // The program uses a stream of another device than the communicator's.
    const cuda::RelaxedCapture relaxed(driver_);
    for (const uint64_t other : contexts_in_process_) {
      if (other == 0) {
        *reason =
            "a stream of another device than the communicator's does not reach the memory of other "
            "processes; make communicators on the device whose streams are used";
        return nullptr;
      }
      auto* const theirs = reinterpret_cast<cuda::Context>(static_cast<uintptr_t>(other));
      if (theirs == context) continue;
      const cuda::Result result = driver_.cuCtxEnablePeerAccess(theirs, 0);
      if (result != cuda::kSuccess && result != cuda::kErrorPeerAlreadyEnabled) {
        *reason = cuda::failed(driver_, "its device", "cuCtxEnablePeerAccess", result).text;
        return nullptr;
      }
    }
  }
  const DeviceKernels* found = device_kernels(driver_, reason);
  if (found != nullptr) kernels_.emplace_back(context, found);
  return found;
}

Outcome StreamMemory::own_stream(const char* function, OwnStream which, cuda::Stream* stream) {
  cuda::Context context = nullptr;
  (void)driver_.cuCtxGetCurrent(&context);
  std::lock_guard lock(lock_);
  for (const Own& own : own_streams_) {
    if (own.context != context || own.which != which) continue;
    *stream = own.stream;
    return {};
  }
  const cuda::RelaxedCapture relaxed(driver_);
  const cuda::Result result = driver_.cuStreamCreate(stream, cuda::kStreamNonBlocking);
  if (result != cuda::kSuccess) return cuda::failed(driver_, function, "cuStreamCreate", result);
  own_streams_.push_back({context, which, *stream});
  return {};
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
}

std::vector<Rank> StreamMemory::silent_ranks(uint32_t fingerprint) const {
  const Rank n = rank_count();
  std::vector<Rank> silent;
  for (Rank peer = 0; peer < n; ++peer) {
    bool any = peer == rank_;
    for (uint32_t phase = 0; phase < StreamProgram::kPhases; ++phase) {
      for (uint32_t slot = 0; slot < StreamProgram::kSlots; ++slot) {
        const uint32_t flag = StreamProgram::full_flag(n, phase, slot, peer, rank_);
        any = any || flags_->flag(flag).load() == fingerprint;
      }
    }
    if (!any) silent.push_back(peer);
  }
  return silent;
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
  return mark;
}

}  // namespace weir::nccl
