// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/neighbors.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "core/base/per_process.h"
#include "core/base/rank_list.h"
#include "core/comm/stream/capture.h"

namespace weir::nccl {

namespace {

struct Known {
  std::mutex lock;
  std::unordered_map<uint64_t, std::weak_ptr<Neighbors>> by_number;
};
Known& known() {
  static constinit PerProcess<Known> it;
  return it.get();
}

cuda::Context context_of(const cuda::Driver& driver, const Operation& operation) {
  const bool named = !cuda::is_default_stream(operation.stream);
  const cuda::ContextScope scope(driver, named ? operation.stream : nullptr, operation.context);
  cuda::Context context = nullptr;
  (void)driver.cuCtxGetCurrent(&context);
  return context;
}

bool waits_for(const Operation& operation, int peer) {
  if (is_message(operation.kind)) return operation.peer == peer;
  return operation.kind != OperationKind::kOneSided || waits_for_signals(operation);
}

std::string describe_queues(uint32_t count) {
  return count == 1 ? "one hardware queue" : fmt::format("{} hardware queues", count);
}

}  // namespace

std::shared_ptr<Neighbors> Neighbors::find(uint64_t number, const std::vector<Rank>& ranks) {
  Known& it = known();
  std::lock_guard lock(it.lock);
  std::erase_if(it.by_number, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Neighbors>& entry = it.by_number[number];
  std::shared_ptr<Neighbors> found = entry.lock();
  if (found == nullptr) {
    found = std::make_shared<Neighbors>();
    for (const auto& [rank, device] : ranks) found->places_[rank].device = device;
    entry = found;
  }
  return found;
}

void Neighbors::note_maker(int rank, std::thread::id thread) {
  std::lock_guard lock(lock_);
  places_[rank].maker = thread;
}

void Neighbors::note_call(int rank, cuda::Context context) {
  std::lock_guard lock(lock_);
  Place& place = places_[rank];
  place.context = context;
  place.thread = std::this_thread::get_id();
}

std::vector<int> Neighbors::sharing(int rank, cuda::Context context) const {
  std::lock_guard lock(lock_);
  std::vector<int> found;
  const int device = places_.at(rank).device;
  for (const auto& [other, place] : places_) {
    const bool has_called = place.thread != std::thread::id();
    const bool shares = has_called ? place.context == context : place.device == device;
    if (other != rank && shares) found.push_back(other);
  }
  return found;
}

std::string Neighbors::hint(const cuda::Driver& driver, int rank) const {
  const uint32_t queues = cuda::hardware_queue_count(driver);
  std::vector<weir::Rank> ranks;
  std::lock_guard lock(lock_);
  const Place& mine = places_.at(rank);
  for (const auto& [other, place] : places_) {
    if (place.thread != std::thread::id() && place.context == mine.context) {
      ranks.push_back(static_cast<weir::Rank>(other));
    }
  }
  if (queues == 0 || ranks.size() < 2) return "";
  return fmt::format(
      "; {} of this process share a device and its {} (CUDA_DEVICE_MAX_CONNECTIONS), and in one "
      "queue the wait of one stands before the work of another",
      describe_ranks(ranks), describe_queues(queues));
}

std::vector<int> Neighbors::of_this_thread(int rank) const {
  std::lock_guard lock(lock_);
  std::vector<int> found;
  for (const auto& [other, place] : places_) {
    const bool has_called = place.thread != std::thread::id();
    const std::thread::id thread = has_called ? place.thread : place.maker;
    if (other != rank && thread == std::this_thread::get_id()) found.push_back(other);
  }
  return found;
}

NeighborsInGroup::NeighborsInGroup(const cuda::Driver& driver,
                                   const std::vector<Operation>& operations)
    : queue_count_(cuda::hardware_queue_count(driver)) {
  if (queue_count_ == 0) return;
  for (const Operation& it : operations) {
    Neighbors* neighbors = it.comm->devices().neighbors().get();
    if (neighbors == nullptr) continue;
    Member& member = members_[{neighbors, it.comm->rank()}];
    member.context = context_of(driver, it);
    comm::Capture capture;
    const cuda::ContextScope scope(driver, nullptr, member.context);
    // An error is told where the operation is enqueued.
    if (comm::capture_of(driver, it.function, it.stream, &capture).ok() && capture.active) {
      member.capture = capture.number;
    }
    neighbors->note_call(it.comm->rank(), member.context);
  }
}

Outcome NeighborsInGroup::check(const std::vector<Operation>& operations,
                                std::shared_ptr<Comm>* failed) const {
  for (const Operation& it : operations) {
    const Neighbors* neighbors = it.comm->devices().neighbors().get();
    if (neighbors == nullptr || queue_count_ == 0) continue;
    const int rank = it.comm->rank();
    const Member& mine = members_.at({neighbors, rank});
    const std::vector<int> sharing = neighbors->sharing(rank, mine.context);
    if (sharing.size() < queue_count_) continue;
    for (const int other : sharing) {
      const auto member = members_.find({neighbors, other});
      const bool together = member != members_.end() && member->second.capture == mine.capture;
      if (together || !waits_for(it, other)) continue;
      *failed = it.comm;
      std::vector<weir::Rank> all{static_cast<weir::Rank>(rank)};
      for (const int one : sharing) all.push_back(static_cast<weir::Rank>(one));
      std::sort(all.begin(), all.end());
      return invalid_usage(fmt::format(
          "{}, rank {} of {}: {} of this process share a device and its {}, in which the wait of "
          "one would stand before the work of another; set CUDA_DEVICE_MAX_CONNECTIONS to at least "
          "{}, put the calls of all of them into one group{}, or give each rank a process or a "
          "device of its own",
          it.function, rank, it.comm->rank_count(), describe_ranks(all),
          describe_queues(queue_count_), all.size(),
          mine.capture != 0 ? " that is captured into one graph" : ""));
    }
  }
  return {};
}

size_t NeighborsInGroup::calls_in_flight_max(const Comm& comm) const {
  constexpr size_t kAlone = 768;
  constexpr size_t kLeast = 320;  // more than one operation takes (slices.h)
  if (queue_count_ == 0) return 0;
  const Neighbors* neighbors = comm.devices().neighbors().get();
  if (neighbors == nullptr) return kAlone;
  for (const int other : neighbors->of_this_thread(comm.rank())) {
    if (members_.count({neighbors, other}) == 0) return 0;
  }
  const Member& mine = members_.at({neighbors, comm.rank()});
  const size_t sharing = 1 + neighbors->sharing(comm.rank(), mine.context).size();
  return std::max(kAlone / sharing, kLeast);
}

}  // namespace weir::nccl
