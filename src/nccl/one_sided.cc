// SPDX-License-Identifier: Apache-2.0
#include "nccl/one_sided.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "api/handles.h"
#include "core/base/clock.h"
#include "core/comm/bootstrap_place.h"
#include "core/comm/communicator.h"
#include "nccl/process.h"

namespace weir::nccl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kCountersMax = uint64_t{1} << 27;
constexpr int kSpins = 2000;
constexpr std::chrono::milliseconds kSpinTime{2};
constexpr std::chrono::microseconds kSleep{50};
constexpr std::chrono::milliseconds kLook{20};  // between two looks at who is alive

// What ranks tell each other of a range of memory.
struct Entry {
  ProcessNumber process;
  uint64_t host;  // 0: not known
  uint64_t pid_namespace;
  uint64_t address;
  uint64_t bytes;
  Share share;
  uint32_t contexts;
  uint32_t signals;
  uint32_t direct;  // 0: this rank wants no direct access
  uint32_t zero;
};

uint64_t pid_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::atomic<uint64_t>* counters_of(unsigned char* memory) {
  return reinterpret_cast<std::atomic<uint64_t>*>(memory);
}
static_assert(std::atomic<uint64_t>::is_always_lock_free);

std::string title(const Comm& comm) {
  return fmt::format("rank {} of {}", comm.rank(), comm.rank_count());
}

// A call of Weir's on a communicator that only this file uses.
Outcome exchange(const char* function, Comm& comm, const void* mine, void* all, size_t bytes) {
  return comm.outcome(function,
                      weir_all_gather(comm.weir(), mine, all, bytes, WEIR_UINT8, nullptr));
}

std::vector<int> lost_ranks(const Comm& comm) {
  std::vector<int> ranks(static_cast<size_t>(comm.rank_count()));
  int count = 0;
  if (weir_comm_lost_ranks(comm.weir(), ranks.data(), comm.rank_count(), &count) != WEIR_OK) {
    count = 0;
  }
  ranks.resize(static_cast<size_t>(std::min(count, comm.rank_count())));
  return ranks;
}

// What the recorder keeps of a call.
struct Recorded {
  comm::RecordKind kind;
  Rank peer;
  uint64_t units;  // bytes, or signals

  explicit Recorded(const OneSidedCall& call)
      : kind(call.wait                ? comm::RecordKind::kWaitSignal
             : call.window != nullptr ? comm::RecordKind::kPutSignal
                                      : comm::RecordKind::kSignal),
        peer(static_cast<Rank>(call.wait ? call.awaited.front().peer : call.peer)),
        units(call.bytes) {
    for (const Awaited& one : call.awaited) units += one.count;
  }
};

uint64_t record_begun(const Comm& comm, const OneSidedCall& call) {
  if (call.wait && call.awaited.empty()) return 0;
  const Recorded it(call);
  return comm.weir()->comm->one_sided_begun(it.kind, it.peer, it.units);
}

void record_wait(const Comm& comm, const OneSidedCall& call, uint64_t since_ns,
                 const std::vector<Rank>& awaited) {
  if (call.record == 0) return;
  const Recorded it(call);
  comm.weir()->comm->one_sided_waits(call.record, it.kind, it.units, since_ns, awaited);
}

}  // namespace

void add_awaited(std::vector<Awaited>* all, const Awaited& one) {
  for (Awaited& known : *all) {
    if (known.peer == one.peer && known.signal == one.signal && known.context == one.context) {
      known.count += one.count;
      return;
    }
  }
  all->push_back(one);
}

// ---- Opening ------------------------------------------------------------------------------------

Outcome OneSided::open(const char* function, Comm& comm) {
  if (comm.one_sided() != nullptr) return {};
  std::shared_ptr<OneSided> it(new OneSided());
  it->rank_ = comm.rank();
  it->rank_count_ = comm.rank_count();
  it->contexts_ = static_cast<uint32_t>(comm.config().rma_contexts);
  it->signals_ = static_cast<uint32_t>(comm.config().rma_signals);
  const uint64_t count =
      uint64_t{it->contexts_} * it->signals_ * static_cast<uint64_t>(it->rank_count_);
  if (uint64_t{it->contexts_} * it->signals_ >
      kCountersMax / static_cast<uint64_t>(it->rank_count_)) {
    return invalid_argument(fmt::format(
        "{}: config.numRmaCtx {} and numRmaSig {} make {} signals for {} ranks, which is too many",
        function, it->contexts_, it->signals_, count, it->rank_count_));
  }
  it->taken_.resize(count);
  const size_t bytes = std::max<size_t>(count, 1) * sizeof(uint64_t);
  Outcome outcome = Allocation::make(function, bytes, &it->counters_);
  if (!outcome.ok()) return outcome;
  bool everywhere = false;
  outcome = it->reach(function, comm, it->counters_->base(), bytes, it->counters_,
                      &it->peer_counters_, &everywhere);
  if (outcome.ok()) comm.set_one_sided(std::move(it));
  return outcome;
}

// Tells the peers of the range and learns of theirs; opens the courier where somebody needs it.
Outcome OneSided::reach(const char* function, Comm& comm, void* memory, size_t bytes,
                        const std::shared_ptr<Allocation>& owner,
                        std::vector<SharedWindow::Peer>* peers, bool* everywhere) {
  Entry mine{};
  mine.process = this_process();
  mine.host = comm::host_tag();
  mine.pid_namespace = pid_namespace();
  mine.address = reinterpret_cast<uintptr_t>(memory);
  mine.bytes = bytes;
  if (owner != nullptr) mine.share = owner->share_of(memory);
  mine.contexts = contexts_;
  mine.signals = signals_;
  mine.direct = direct_allowed() ? 1 : 0;
  std::vector<Entry> all(static_cast<size_t>(rank_count_));
  Outcome outcome = exchange(function, comm, &mine, all.data(), sizeof mine);
  if (!outcome.ok()) return outcome;
  peers->resize(all.size());
  unsigned char everybody = 1;
  for (int rank = 0; rank < rank_count_; ++rank) {
    const Entry& entry = all[static_cast<size_t>(rank)];
    SharedWindow::Peer& peer = (*peers)[static_cast<size_t>(rank)];
    if (entry.contexts != contexts_ || entry.signals != signals_) {
      return invalid_argument(fmt::format(
          "{}, {}: rank {} has config.numRmaCtx {} and numRmaSig {}, this one {} and {}: they are "
          "the same on all ranks",
          function, title(comm), rank, entry.contexts, entry.signals, contexts_, signals_));
    }
    peer.bytes = entry.bytes;
    if (rank == rank_) {
      peer.address = static_cast<unsigned char*>(memory);
      continue;
    }
    const bool allowed = mine.direct != 0 && entry.direct != 0;
    if (allowed && entry.process == mine.process) {
      peer.address = reinterpret_cast<unsigned char*>(static_cast<uintptr_t>(entry.address));
    } else if (allowed && entry.host != 0 && entry.host == mine.host &&
               entry.pid_namespace == mine.pid_namespace && entry.bytes > 0) {
      peer.mapping = Mapping::open(entry.share, entry.bytes);
      if (peer.mapping != nullptr) peer.address = peer.mapping->range();
    }
    if (peer.address == nullptr && peer.bytes > 0) everybody = 0;
  }
  std::vector<unsigned char> reached(all.size());
  outcome = exchange(function, comm, &everybody, reached.data(), 1);
  if (!outcome.ok()) return outcome;
  *everywhere = std::all_of(reached.begin(), reached.end(), [](auto r) { return r != 0; });
  if (courier_ != nullptr || *everywhere) return {};
  const weir_comm_config_t config = comm.config().weir();
  weir_comm_t made = nullptr;
  outcome = comm.outcome(function, weir_comm_split(comm.weir(), 0, rank_, &config, &made));
  if (!outcome.ok()) return outcome;
  Courier::Receiver* receiver = this;
  courier_ = std::make_unique<Courier>(made, rank_, rank_count_, receiver);
  return {};
}

OneSided::~OneSided() { courier_.reset(); }

Outcome OneSided::add_window(const char* function, Comm& comm, void* memory, size_t bytes,
                             std::shared_ptr<SharedWindow>* made) {
  auto window = std::make_shared<SharedWindow>();
  window->memory = static_cast<unsigned char*>(memory);
  window->bytes = bytes;
  window->owner = symmetric_owner(memory, bytes);
  {
    // A peer that is ahead may write before this rank has its answers.
    std::lock_guard lock(lock_);
    window->number = next_window_++;
    windows_[window->number] = {window->memory, bytes, 0};
  }
  Outcome outcome =
      reach(function, comm, memory, bytes, window->owner, &window->peers, &window->everywhere);
  if (!outcome.ok()) {
    remove_window(*window);
    return outcome;
  }
  *made = std::move(window);
  return {};
}

void OneSided::remove_window(const SharedWindow& window) {
  std::unique_lock lock(lock_);
  const auto found = windows_.find(window.number);
  if (found == windows_.end()) return;
  // The courier's communicator has its own way to end: what is being received ends with it at the
  // latest.
  received_.wait(lock, [&] { return found->second.receiving == 0; });
  windows_.erase(window.number);
}

void OneSided::abort() {
  if (courier_ != nullptr) courier_->abort();
}

// ---- What the courier brings --------------------------------------------------------------------

unsigned char* OneSided::place(uint64_t number, uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(lock_);
  const auto found = windows_.find(number);
  if (found == windows_.end() || offset > found->second.bytes ||
      bytes > found->second.bytes - offset) {
    return nullptr;
  }
  ++found->second.receiving;
  return found->second.memory + offset;
}

void OneSided::arrived(uint64_t number) {
  {
    std::lock_guard lock(lock_);
    const auto found = windows_.find(number);
    if (found != windows_.end()) --found->second.receiving;
  }
  received_.notify_all();
}

bool OneSided::signal(int origin, uint32_t context, uint32_t signal) {
  if (context >= contexts_ || signal >= signals_) return false;
  counters_of(counters_->base())[counter_index(origin, context, signal)].fetch_add(
      1, std::memory_order_release);
  return true;
}

size_t OneSided::counter_index(int origin, uint32_t context, uint32_t signal) const {
  return (size_t{context} * signals_ + signal) * static_cast<size_t>(rank_count_) +
         static_cast<size_t>(origin);
}

// ---- Operations ---------------------------------------------------------------------------------

Outcome OneSided::begin(const char* function, const Comm& comm, OneSidedCall& call) {
  call.record = record_begun(comm, call);
  if (call.wait) return {};
  const SharedWindow::Peer& counters = peer_counters_[static_cast<size_t>(call.peer)];
  unsigned char* target =
      call.bytes > 0 ? call.window->peers[static_cast<size_t>(call.peer)].address : nullptr;
  const bool direct = counters.address != nullptr && (call.bytes == 0 || target != nullptr);
  if (direct) {
    // What the courier has under way comes first.
    if (courier_ != nullptr && !courier_->idle(call.peer)) {
      const auto until = Clock::now() + std::chrono::milliseconds(comm.config().timeout_ms());
      while (!courier_->idle(call.peer)) {
        Outcome outcome = stopped(function, comm);
        if (!outcome.ok()) return outcome;
        if (Clock::now() > until) {
          return {ncclRemoteError,
                  fmt::format("{}, {}: rank {} has not taken an earlier write before the deadline",
                              function, title(comm), call.peer)};
        }
        std::this_thread::sleep_for(kSleep);
      }
    }
    if (call.bytes > 0) std::memmove(target + call.offset, call.data, call.bytes);
    counters_of(counters.address)[counter_index(rank_, call.context, call.signal)].fetch_add(
        1, std::memory_order_release);
    return {};
  }
  auto parcel = std::make_shared<Parcel>();
  parcel->peer = call.peer;
  parcel->data = call.data;
  parcel->bytes = call.bytes;
  parcel->window = call.window != nullptr ? call.window->number : 0;
  parcel->offset = call.offset;
  parcel->signal = call.signal;
  parcel->context = call.context;
  call.parcel = parcel;
  courier_->send(std::move(parcel));
  return {};
}

Outcome OneSided::finish(const char* function, const Comm& comm, OneSidedCall& call) {
  Outcome outcome = call.wait                ? wait_for_signals(function, comm, call)
                    : call.parcel == nullptr ? Outcome()
                                             : wait_for_parcel(function, comm, call);
  // What failed stays as it was in the record.
  if (outcome.ok()) comm.weir()->comm->one_sided_done(call.record);
  return outcome;
}

// Why nothing can be waited for any more; ok while it can.
Outcome OneSided::stopped(const char* function, const Comm& comm) const {
  if (comm.stopped_here()) {
    return {ncclInternalError,
            fmt::format("{}, {}: the communicator was aborted", function, title(comm))};
  }
  if (courier_ != nullptr && courier_->failed()) {
    return {ncclRemoteError, fmt::format("{}, {}: one-sided messages: {}", function, title(comm),
                                         courier_->failure())};
  }
  return {};
}

Outcome OneSided::wait_for_parcel(const char* function, const Comm& comm,
                                  const OneSidedCall& call) {
  const Parcel& parcel = *call.parcel;
  const auto until = Clock::now() + std::chrono::milliseconds(comm.config().timeout_ms());
  const uint64_t since_ns = now_ns();
  const std::vector<Rank> awaited = {static_cast<Rank>(call.peer)};
  for (;;) {
    courier_->wait(parcel, kLook.count());
    const int state = parcel.state.load();
    if (state == Parcel::kDone) return {};
    if (state == Parcel::kLeft) {
      return {ncclRemoteError, fmt::format("{}, {}: rank {} has destroyed its communicator",
                                           function, title(comm), call.peer)};
    }
    if (state == Parcel::kRefused) {
      return {ncclRemoteError,
              fmt::format("{}, {}: rank {} has no such window any more, or no {} bytes at {} in it",
                          function, title(comm), call.peer, call.bytes, call.offset)};
    }
    record_wait(comm, call, since_ns, awaited);
    Outcome outcome = stopped(function, comm);
    if (outcome.ok() && Clock::now() > until) {
      outcome = {
          ncclRemoteError,
          fmt::format("{}, {}: rank {} has not taken {} bytes before the deadline of {} ms",
                      function, title(comm), call.peer, call.bytes, comm.config().timeout_ms())};
    }
    if (!outcome.ok()) {
      // The courier's thread may be reading the caller's buffer, which is the caller's again.
      courier_->abort();
      courier_->wait_until_failed();
      return outcome;
    }
  }
}

bool OneSided::take(const std::vector<Awaited>& awaited, std::vector<int>* missing) {
  std::lock_guard lock(taking_);
  const std::atomic<uint64_t>* counters = counters_of(counters_->base());
  missing->clear();
  for (const Awaited& one : awaited) {
    const size_t index = counter_index(one.peer, one.context, one.signal);
    if (counters[index].load(std::memory_order_acquire) - taken_[index] < one.count) {
      missing->push_back(one.peer);
    }
  }
  if (!missing->empty()) return false;
  for (const Awaited& one : awaited) {
    taken_[counter_index(one.peer, one.context, one.signal)] += one.count;
  }
  return true;
}

Outcome OneSided::wait_for_signals(const char* function, const Comm& comm,
                                   const OneSidedCall& call) {
  const auto began = Clock::now();
  const auto until = began + std::chrono::milliseconds(comm.config().timeout_ms());
  auto next_look = began + kLook;
  const uint64_t since_ns = now_ns();
  std::vector<int> missing;
  std::vector<Rank> awaited;
  for (int polls = 0; !take(call.awaited, &missing); ++polls) {
    // On a crowded machine a yield may take long.
    if (polls < kSpins && Clock::now() - began < kSpinTime) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(kSleep);
    awaited.assign(missing.begin(), missing.end());
    record_wait(comm, call, since_ns, awaited);
    Outcome outcome = stopped(function, comm);
    const auto now = Clock::now();
    if (outcome.ok() && now >= next_look) {
      next_look = now + kLook;
      std::vector<int> lost;
      for (const int rank : lost_ranks(comm)) {
        if (std::find(missing.begin(), missing.end(), rank) != missing.end()) lost.push_back(rank);
      }
      if (!lost.empty()) {
        outcome = {ncclRemoteError, fmt::format("{}, {}: rank {} has ended and will not signal",
                                                function, title(comm), fmt::join(lost, ", "))};
      }
    }
    if (outcome.ok() && now > until) {
      outcome = {
          ncclRemoteError,
          fmt::format("{}, {}: no signal from rank {} before the deadline of {} ms", function,
                      title(comm), fmt::join(missing, ", "), comm.config().timeout_ms())};
    }
    if (outcome.ok()) continue;
    // The last signal of a rank that has ended may have come since.
    if (take(call.awaited, &missing)) return {};
    return outcome;
  }
  return {};
}

}  // namespace weir::nccl
