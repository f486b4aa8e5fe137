// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/one_sided.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "api/handles.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/process_number.h"
#include "core/comm/communicator.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/comm/stream/direct_choice.h"
#include "cuda/driver.h"

namespace weir::nccl {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kCountersMax = uint64_t{1} << 27;
constexpr int kSpins = 2000;
constexpr std::chrono::milliseconds kSpinTime{2};
constexpr std::chrono::microseconds kSleep{50};
constexpr std::chrono::milliseconds kLook{20};  // between two checks which ranks are alive
constexpr int kLatePolls = 64;                  // in vain, after which no signal is still to come

// What ranks tell each other of a range of memory.
struct Entry {
  ProcessNumber process;
  uint64_t host;  // 0: not known
  uint64_t pid_namespace;
  uint64_t address;
  uint64_t bytes;
  Share share;
  Share gate;
  uint32_t contexts;
  uint32_t signals;
  uint32_t direct;     // 0: this rank wants no direct access
  uint32_t on_device;  // 1: only a device reaches the memory
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

// Whether no processor reaches the memory: that of the stand-in's devices is the host's.
bool only_on_device(const void* memory) {
  const cuda::Driver* driver = cuda::known_driver();
  return driver != nullptr && !driver->is_stand_in && cuda::only_on_device(*driver, memory);
}

// Finds the peer's memory, where this process reaches it and can be kept out of it.
void reach(const Entry& mine, const Entry& theirs, int rank, int rank_count,
           SharedWindow::Peer* peer) {
  const bool same_process = theirs.process == mine.process;
  const bool same_machine = theirs.host != 0 && theirs.host == mine.host &&
                            theirs.pid_namespace == mine.pid_namespace && theirs.bytes > 0;
  if (!same_process && !same_machine) return;
  if (!same_process) peer->mapping = Mapping::open(theirs.share, theirs.bytes);
  if (!same_process && peer->mapping == nullptr) return;
  peer->gate = PeerGate::open(theirs.gate, rank, rank_count);
  if (peer->gate == nullptr) {
    peer->mapping.reset();
    return;
  }
  peer->address = same_process
                      ? reinterpret_cast<unsigned char*>(static_cast<uintptr_t>(theirs.address))
                      : peer->mapping->range();
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
        "{}: config.numRmaCtx {} and numRmaSig {} make {} signals for {} ranks, which are too many",
        function, it->contexts_, it->signals_, count, it->rank_count_));
  }
  it->taken_.resize(count);
  const size_t bytes = std::max<size_t>(count, 1) * sizeof(uint64_t);
  Outcome outcome = Allocation::make(function, bytes, &it->counters_.owner);
  if (outcome.ok()) {
    outcome = it->share(function, comm, it->counters_.owner->base(), bytes, &it->counters_);
  }
  if (outcome.ok()) comm.set_one_sided(it, &OneSided::leave);
  return outcome;
}

// Tells the peers of the range and learns of theirs.
Outcome OneSided::share(const char* function, Comm& comm, void* memory, size_t bytes,
                        SharedWindow* window) const {
  Entry mine{};
  mine.process = this_process();
  mine.host = comm::host_tag();
  mine.pid_namespace = pid_namespace();
  mine.address = reinterpret_cast<uintptr_t>(memory);
  mine.bytes = bytes;
  if (window->owner != nullptr) mine.share = window->owner->share_of(memory);
  if (comm::peer_access_allowed()) window->gate = Gate::make(function, rank_count_);
  if (window->gate != nullptr) mine.gate = window->gate->share();
  mine.contexts = contexts_;
  mine.signals = signals_;
  mine.direct = comm::peer_access_allowed() ? 1 : 0;
  mine.on_device = only_on_device(memory) ? 1 : 0;
  std::vector<Entry> all(static_cast<size_t>(rank_count_));
  Outcome outcome = exchange(function, comm, &mine, all.data(), sizeof mine);
  if (!outcome.ok()) return outcome;
  window->peers.resize(all.size());
  comm::OneSidedReach reached;
  reached.is_everywhere = true;
  for (int rank = 0; rank < rank_count_; ++rank) {
    const Entry& entry = all[static_cast<size_t>(rank)];
    SharedWindow::Peer& peer = window->peers[static_cast<size_t>(rank)];
    if (entry.contexts != contexts_ || entry.signals != signals_) {
      return invalid_argument(fmt::format(
          "{}, {}: rank {} has config.numRmaCtx {} and numRmaSig {}, this rank {} and {}: they "
          "must be the same on all ranks",
          function, title(comm), rank, entry.contexts, entry.signals, contexts_, signals_));
    }
    peer.bytes = entry.bytes;
    peer.on_device = entry.on_device != 0;
    if (peer.on_device) {
      // Collectives reach it by other means (stream/agreement.h), and puts are refused.
    } else if (rank == rank_) {
      peer.address = static_cast<unsigned char*>(memory);
    } else if (mine.direct != 0 && entry.direct != 0) {
      reach(mine, entry, rank_, rank_count_, &peer);
    }
    if (peer.address == nullptr && peer.bytes > 0) reached.is_everywhere = false;
    reached.addresses.push_back(peer.address);
  }
  const bool hidden = mine.on_device != 0;
  outcome = comm.outcome(
      function, create_reached_window(comm.weir(), hidden ? nullptr : memory, hidden ? 0 : bytes,
                                      reached, &window->weir, &window->everywhere));
  // This was a collective: no rank is before it any more.
  if (outcome.ok() && window->gate != nullptr) window->gate->stop_sharing();
  return outcome;
}

Outcome OneSided::add_window(const char* function, Comm& comm, void* memory, size_t bytes,
                             std::shared_ptr<SharedWindow>* made) {
  auto window = std::make_shared<SharedWindow>();
  window->owner = symmetric_owner(memory, bytes);
  window->device_owner = device_owner(memory, bytes);
  Outcome outcome = share(function, comm, memory, bytes, window.get());
  if (outcome.ok()) *made = std::move(window);
  return outcome;
}

Outcome OneSided::end_window(const char* function, const Comm& comm, SharedWindow& window) const {
  const std::lock_guard lock(window.ending);
  const Outcome kept_out = keep_out(function, comm, {window.gate});
  const Outcome retired =
      comm.outcome(function, weir_window_retire(std::exchange(window.weir, nullptr)));
  return kept_out.ok() ? retired : kept_out;
}

Outcome OneSided::keep_out(const char* function, const Comm& comm,
                           const std::vector<std::shared_ptr<Gate>>& gates) const {
  for (const auto& gate : gates) {
    if (gate != nullptr) gate->close();
  }
  const auto inside = [&](int rank) {
    return std::any_of(gates.begin(), gates.end(), [rank](const auto& gate) {
      return gate != nullptr && gate->has_inside(rank);
    });
  };
  const auto began = Clock::now();
  const auto until = began + std::chrono::milliseconds(comm.config().timeout_ms());
  auto next_look = began + kLook;
  std::vector<int> lost;
  const auto has_died = [&](int rank) {
    const bool is_in_this_process = counters_.peers[static_cast<size_t>(rank)].mapping == nullptr;
    return !is_in_this_process && std::find(lost.begin(), lost.end(), rank) != lost.end();
  };
  for (int rank = 0; rank < rank_count_;) {
    if (!inside(rank) || has_died(rank)) {
      ++rank;
      continue;
    }
    const auto now = Clock::now();
    if (now > until) {
      return {ncclRemoteError,
              fmt::format("{}, {}: rank {} has a put in progress and did not complete it within "
                          "{} ms; do not free the memory before that rank has ended",
                          function, title(comm), rank, comm.config().timeout_ms())};
    }
    if (now >= next_look) {
      next_look = now + kLook;
      lost = lost_ranks(comm);
    }
    std::this_thread::sleep_for(kSleep);
  }
  return {};
}

void OneSided::leave(const Comm& comm) {
  const std::shared_ptr<OneSided> it = comm.one_sided();
  std::vector<std::shared_ptr<Gate>> gates = {it->counters_.gate};
  for (const auto& window : comm.shared_windows()) gates.push_back(window->gate);
  const Outcome outcome = it->keep_out("ncclCommDestroy", comm, gates);
  if (!outcome.ok()) log_warn(outcome.text);
}

size_t OneSided::counter_index(int origin, uint32_t context, uint32_t signal) const {
  return (size_t{context} * signals_ + signal) * static_cast<size_t>(rank_count_) +
         static_cast<size_t>(origin);
}

// ---- Operations ---------------------------------------------------------------------------------

Outcome OneSided::put(const char* function, const Comm& comm, const OneSidedCall& call,
                      weir_request_t* request) const {
  weir_request_t own = nullptr;
  Outcome outcome = start_put(function, comm, call, request != nullptr ? request : &own);
  if (outcome.ok() && own != nullptr) outcome = put_outcome(function, comm, call, weir_wait(&own));
  return outcome;
}

Outcome OneSided::put_outcome(const char* function, const Comm& comm, const OneSidedCall& call,
                              weir_result_t result) const {
  if (call.window == nullptr || result != WEIR_ERROR_INVALID_USAGE) {
    return comm.outcome(function, result);
  }
  return {ncclRemoteError, fmt::format("{}, {}: rank {} has deregistered its window", function,
                                       title(comm), call.peer)};
}

// What is done directly is done here.
Outcome OneSided::start_put(const char* function, const Comm& comm, const OneSidedCall& call,
                            weir_request_t* request) const {
  const size_t signal = counter_index(rank_, call.context, call.signal) * sizeof(uint64_t);
  const auto peer = static_cast<size_t>(call.peer);
  const Passage to_counters(counters_.peers[peer].gate.get());
  if (!to_counters.is_open()) {
    return {ncclRemoteError, fmt::format("{}, {}: rank {} has ended its communicator", function,
                                         title(comm), call.peer)};
  }
  // Ordered after all earlier puts to this peer.
  const weir_result_t result = weir_fence(comm.weir(), call.peer);
  if (result != WEIR_OK) return comm.outcome(function, result);
  if (call.window == nullptr) {
    return comm.outcome(function, weir_signal(counters_.weir, call.peer, signal, 1, request));
  }
  if (call.window->peers[peer].on_device) {
    return invalid_usage(
        fmt::format("{}, {}: the window of rank {} lies on a device; one-sided operations need "
                    "host memory there, such as that of cudaMallocHost",
                    function, title(comm), call.peer));
  }
  const std::shared_lock lock(call.window->ending);
  if (call.window->weir == nullptr) {
    return invalid_argument(
        fmt::format("{}, {}: the window was deregistered", function, title(comm)));
  }
  const Passage to_window(call.window->peers[peer].gate.get());
  if (!to_window.is_open()) return put_outcome(function, comm, call, WEIR_ERROR_INVALID_USAGE);
  return put_outcome(function, comm, call,
                     weir_put_signal(call.window->weir, call.peer, call.offset, call.data,
                                     call.bytes, counters_.weir, signal, 1, request));
}

bool OneSided::take(const std::vector<Awaited>& awaited, std::vector<int>* missing) {
  std::lock_guard lock(taking_);
  const std::atomic<uint64_t>* counters = counters_of(counters_.owner->base());
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

// The last signals of a rank that has ended may have arrived since then.
bool OneSided::take_late(const Comm& comm, const std::vector<Awaited>& awaited) {
  std::vector<int> missing;
  for (int polls = 0; polls < kLatePolls; ++polls) {
    if (take(awaited, &missing)) return true;
    if (comm.weir()->comm->poll_windows()) polls = 0;
  }
  return false;
}

Outcome OneSided::wait(const char* function, const Comm& comm, const OneSidedCall& call) {
  const auto began = Clock::now();
  const auto until = began + std::chrono::milliseconds(comm.config().timeout_ms());
  auto next_look = began + kLook;
  const uint64_t since_ns = now_ns();
  comm::Communicator& weir = *comm.weir()->comm;
  uint64_t units = 0;
  for (const Awaited& one : call.awaited) units += one.count;
  constexpr auto kKind = comm::RecordKind::kWaitSignal;
  const uint64_t record =
      call.awaited.empty()
          ? 0
          : weir.records().one_sided_begun(kKind, static_cast<Rank>(call.awaited[0].peer), units);
  std::vector<int> missing;
  std::vector<Rank> awaited;
  for (int polls = 0; !take(call.awaited, &missing); ++polls) {
    if (!counters_.everywhere && weir.poll_windows()) continue;
    // On a crowded machine a yield may take long.
    if (polls < kSpins && Clock::now() - began < kSpinTime) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(kSleep);
    awaited.assign(missing.begin(), missing.end());
    weir.records().one_sided_waits(record, kKind, units, since_ns, awaited);
    Outcome outcome;
    if (comm.stopped_here()) {
      outcome = {ncclInternalError,
                 fmt::format("{}, {}: the communicator was aborted", function, title(comm))};
    }
    const auto now = Clock::now();
    if (outcome.ok() && now >= next_look) {
      next_look = now + kLook;
      std::vector<int> lost;
      for (const int rank : lost_ranks(comm)) {
        if (std::find(missing.begin(), missing.end(), rank) != missing.end()) lost.push_back(rank);
      }
      weir_result_t error = WEIR_OK;
      if (!lost.empty()) {
        outcome = {ncclRemoteError, fmt::format("{}, {}: rank {} has ended and will send no signal",
                                                function, title(comm), fmt::join(lost, ", "))};
      } else if (weir_comm_async_error(comm.weir(), &error) == WEIR_OK && error != WEIR_OK) {
        outcome = {ncclRemoteError,
                   fmt::format("{}, {}: {}", function, title(comm), weir_last_error(comm.weir()))};
      }
    }
    if (outcome.ok() && now > until) {
      outcome = {
          ncclRemoteError,
          fmt::format("{}, {}: no signal from rank {} before the deadline of {} ms; let it call "
                      "ncclSignal or ncclPutSignal, or set WEIR_TIMEOUT_MS for a longer wait",
                      function, title(comm), fmt::join(missing, ", "), comm.config().timeout_ms())};
    }
    if (outcome.ok()) continue;
    if (take_late(comm, call.awaited)) break;
    return outcome;  // what failed stays as it was in the record
  }
  weir.records().one_sided_done(record);
  return {};
}

}  // namespace weir::nccl
