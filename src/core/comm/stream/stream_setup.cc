// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/comm/stream/cuda_error.h"
#include "cuda/kernels/reduce_arguments.h"

namespace weir::comm {

namespace {

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

Sharing find_sharing(const std::vector<StreamSetup::Entry>& all) {
  Sharing found;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto shares = [&](const StreamSetup::Entry& other) {
      return other.process == all[rank].process && other.context == all[rank].context;
    };
    const auto ranks = static_cast<size_t>(std::count_if(all.begin(), all.end(), shares));
    if (ranks < 2 || all[rank].connections == 0 || ranks <= found.ranks) continue;
    found = {ranks, static_cast<Rank>(rank), all[rank].connections, is_demanded(all[rank].choice)};
  }
  return found;
}

// Whether this CUDA has memory that is made by mapping, for other processes, too.
bool can_map(const cuda::Driver& driver) {
  return driver.can_share_mapped() &&
         cuda::Driver::has(driver.cuMemCreate, driver.cuMemGetAllocationGranularity);
}

// On the current context's device, for all devices that reach it; 0: there is none.
cuda::DevicePointer map_memory(const cuda::Driver& driver, uint64_t bytes) {
  if (!can_map(driver)) return 0;
  cuda::AllocationProperties wanted;
  wanted.type = cuda::kAllocationPinned;
  wanted.handle_types = cuda::kHandleDescriptor;
  wanted.location.type = cuda::kLocationDevice;
  size_t unit = 0;
  cuda::AllocationHandle handle = 0;
  if (driver.cuCtxGetDevice(&wanted.location.id) != cuda::kSuccess ||
      driver.cuMemGetAllocationGranularity(&unit, &wanted, cuda::kGranularityRecommended) !=
          cuda::kSuccess ||
      unit == 0) {
    return 0;
  }
  const uint64_t rounded = (bytes + unit - 1) / unit * unit;
  if (driver.cuMemCreate(&handle, rounded, &wanted, 0) != cuda::kSuccess) return 0;
  cuda::DevicePointer at = 0;
  cuda::MemoryAccess access{wanted.location, cuda::kAccessReadWrite};
  const bool reserved = driver.cuMemAddressReserve(&at, rounded, unit, 0, 0) == cuda::kSuccess;
  const bool mapped = reserved && driver.cuMemMap(at, rounded, 0, handle, 0) == cuda::kSuccess;
  (void)driver.cuMemRelease(handle);  // the mapping keeps it
  if (!mapped || driver.cuMemSetAccess(at, rounded, &access, 1) != cuda::kSuccess) {
    if (mapped) (void)driver.cuMemUnmap(at, rounded);
    if (reserved) (void)driver.cuMemAddressFree(at, rounded);
    return 0;
  }
  int count = 0;
  if (driver.cuDeviceGetCount == nullptr || driver.cuDeviceGetCount(&count) != cuda::kSuccess) {
    count = 0;
  }
  for (access.location.id = 0; access.location.id < count; ++access.location.id) {
    // Devices that cannot reach it are refused.
    if (access.location.id != wanted.location.id) {
      (void)driver.cuMemSetAccess(at, rounded, &access, 1);
    }
  }
  return at;
}

}  // namespace

StreamSetup::StreamSetup(const Config& config) : config_(config), offers_(config.network) {
  memory_.reset(new StreamMemory(*cuda::driver_in_use()));
  memory_->rank_ = config.rank;
}

StreamSetup::~StreamSetup() { withdraw(); }

void StreamSetup::withdraw() {
  if (std::exchange(offered_, false)) config_.network->withdraw(mine_.key);
  offers_.withdraw();
}

bool StreamSetup::prepare(uint64_t scratch_bytes) {
  const cuda::Driver& driver = memory_->driver_;
  if (!driver.can_stream()) {
    reason_ = "this CUDA lacks functions for work on streams alone";
    return false;
  }
  if (config_.rank_count > kernels::kRanksMax) {
    reason_ = fmt::format("{} ranks of one machine are more than {}", config_.rank_count,
                          kernels::kRanksMax);
    return false;
  }
  cuda::Context& context = memory_->context_;
  context = cuda::context_on(driver, config_.device);
  // A thread without a context uses the device's primary one, as CUDA's runtime does.
  if (context == nullptr &&
      driver.cuDevicePrimaryCtxRetain(&context, config_.device) != cuda::kSuccess) {
    reason_ = fmt::format("device {} has no context", config_.device);
    return false;
  }
  const cuda::ContextScope scope(driver, nullptr, context);
  memory_->scratch_bytes_ = scratch_bytes;
  if (!allocate(scratch_bytes)) return false;
  memory_->has_kernels_ = device_kernels(driver, &reason_) != nullptr;
  memory_->context_check_ = std::make_shared<ContextCheck>(driver, context);
  return true;
}

// For other processes by mapping, where this CUDA can: CUDA IPC needs privileges that some lack.
bool StreamSetup::allocate(uint64_t bytes) {
  const cuda::Driver& driver = memory_->driver_;
  const bool maps = is_for_others() && can_map(driver);
  if (memory_->take_resting(maps)) return true;
  const cuda::RelaxedCapture relaxed(driver);
  cuda::DevicePointer memory = maps ? map_memory(driver, bytes) : 0;
  memory_->scratch_is_mapped_ = memory != 0;
  if (memory == 0) {
    // A CUDA that has the functions may refuse the memory (WSL, virtual GPUs).
    if (maps && memory_->take_resting(false)) return true;
    const cuda::Result result = driver.cuMemAlloc_v2(&memory, bytes);
    if (result != cuda::kSuccess) {
      reason_ = cuda_failed(driver, "scratch on the device", "cuMemAlloc", result).text();
      return false;
    }
  }
  memory_->scratch_number_ = next_number();
  memory_->own_scratch_ = reinterpret_cast<char*>(static_cast<uintptr_t>(memory));
  return true;
}

const StreamSetup::Entry& StreamSetup::begin() {
  const Rank n = config_.rank_count;
  const cuda::Driver& driver = memory_->driver_;
  mine_.slot_bytes = slot_bytes_wanted(n);
  mine_.message_slot_bytes = message_slot_bytes_wanted(n);
  const uint64_t scratch_bytes = (StreamProgram::kSlots + 1) * mine_.slot_bytes +
                                 StreamProgram::kAlign +
                                 n * StreamMemory::kSlotsOfPair * mine_.message_slot_bytes;
  mine_.process = this_process();
  mine_.connections = cuda::hardware_queue_count(driver);
  mine_.choice = config_.choice;
  bool ok = prepare(scratch_bytes);
  if (ok && config_.rank == 0) {
    int descriptor = -1;
    auto flags = StreamFlags::make(n, &mine_.key, &descriptor);
    Status status = flags.status();
    if (flags.ok()) {
      memory_->flags_ = flags.take();
      memory_->entered_ = true;
      const bool is_alone = config_.network == nullptr;
      if (!is_alone) status = config_.network->offer(mine_.key, descriptor);
      offered_ = !is_alone && status.ok();
    }
    ok = status.ok();
    if (!ok) reason_ = status.text();
  }
  if (ok) {
    const cuda::ContextScope scope(driver, nullptr, memory_->context_);
    mine_.scratch = range_of(driver, memory_->own_scratch_, scratch_bytes,
                             is_for_others() ? &offers_ : nullptr, memory_->scratch_number_);
    mine_.context = reinterpret_cast<uintptr_t>(memory_->context_);
  }
  mine_.ok = ok ? 1 : 0;
  mine_.kernels = memory_->has_kernels_ ? 1 : 0;
  return mine_;
}

bool StreamSetup::find_flags(const StreamFlagsKey& key) {
  std::shared_ptr<StreamFlags>& flags = memory_->flags_;
  if (flags == nullptr) flags = StreamFlags::find(key);
  if (flags != nullptr) return true;
  auto fetched = fetch_from(config_.network, 0)(key);
  if (!fetched.ok()) {
    reason_ = fetched.status().text();
    return false;
  }
  auto mapped = StreamFlags::map(key, fetched.value(), config_.rank_count);
  (void)close(fetched.value());
  if (mapped.ok()) flags = mapped.take();
  if (!mapped.ok()) reason_ = mapped.status().text();
  return flags != nullptr;
}

Result<bool> StreamSetup::connect(const std::vector<Entry>& all) {
  const Rank n = config_.rank_count;
  const Rank me = config_.rank;
  StreamMemory& it = *memory_;
  it.slot_bytes_ = mine_.slot_bytes;
  it.message_slot_bytes_ = mine_.message_slot_bytes;
  bool ok = true;
  for (const Entry& one : all) {
    if (one.ok != 1) ok = false;
    if (one.kernels != 1) it.has_kernels_ = false;
    it.slot_bytes_ = std::min(it.slot_bytes_, one.slot_bytes);
    it.message_slot_bytes_ = std::min(it.message_slot_bytes_, one.message_slot_bytes);
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
      return Status(Code::kInvalidUsage,
                    fmt::format("{}, rank {} of {}: {}", config_.function, me, n, what));
    }
    if (!sharing.demanded) {
      ok = false;
      if (me == sharing.rank) reason_ = what;
    }
  }
  if (!ok) return false;
  const cuda::ContextScope scope(it.driver_, nullptr, it.context_);
  if (!find_flags(all[0].key)) return false;
  if (!std::exchange(it.entered_, true)) it.flags_->enter();
  it.use_count_ = it.flags_->use_count();
  if (!it.register_flags(&reason_)) return false;
  const uint64_t scratch_bytes = it.scratch_bytes_;
  for (Rank rank = 0; rank < n; ++rank) {
    const bool here = all[rank].process == mine_.process;
    it.contexts_in_process_.push_back(here ? all[rank].context : 0);
    if (rank == me) {
      it.scratch_.push_back(it.own_scratch_);
      continue;
    }
    const Reached reached = reach_by_kernel(it.driver_, all[rank].process, all[rank].scratch,
                                            scratch_bytes, fetch_from(config_.network, rank));
    if (reached.address == nullptr) {
      reason_ = fmt::format("rank {}'s scratch: {}", rank, reached.reason);
      return false;
    }
    it.scratch_.push_back(reached.address);
  }
  return true;
}

std::shared_ptr<StreamMemory> StreamSetup::end(bool all_can) {
  withdraw();  // all have fetched it
  if (!all_can) return nullptr;
  if (config_.links != nullptr) {
    memory_->ways_ = StreamWays(*config_.links, config_.rank, config_.rank_count,
                                memory_->slot_bytes_, config_.deterministic);
  }
  return std::move(memory_);
}

}  // namespace weir::comm
