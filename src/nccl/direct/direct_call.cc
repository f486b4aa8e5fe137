// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "api/handles.h"
#include "core/base/rank_list.h"
#include "core/engine/call.h"
#include "cuda/kernels/reduce_layout.h"
#include "nccl/api/translate.h"
#include "nccl/direct/direct_policy.h"
#include "nccl/host/slices.h"

namespace weir::nccl {

// What each rank tells the others.
struct DirectCall::Entry {
  uint32_t kind;
  uint32_t type;
  int32_t root;
  uint32_t op;      // of a reduction: the fold, or kScaledSum
  uint32_t usable;  // 1: its buffers lie on a device, and peers may use them
  uint32_t zero;
  uint64_t count;
  uint64_t factor;  // of a pre-multiplied sum
  ProcessNumber process;
  DeviceRange send;
  DeviceRange recv;  // where peers write
};

namespace {

constexpr uint32_t kScaledSum = 0x100;
// Parts of a reduction begin at a multiple of this, except where a buffer begins elsewhere.
constexpr size_t kPartAlign = 256;

kernels::ReduceFold fold_of(weir_redop_t op) {
  switch (op) {
    case WEIR_PROD:
      return kernels::ReduceFold::kProd;
    case WEIR_MAX:
      return kernels::ReduceFold::kMax;
    case WEIR_MIN:
      return kernels::ReduceFold::kMin;
    default:  // also of an average
      return kernels::ReduceFold::kSum;
  }
}

Collective collective_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kReduce:
      return Collective::kReduce;
    case OperationKind::kBroadcast:
      return Collective::kBroadcast;
    case OperationKind::kReduceScatter:
      return Collective::kReduceScatter;
    case OperationKind::kAllGather:
      return Collective::kAllGather;
    case OperationKind::kAllToAll:
      return Collective::kAllToAll;
    case OperationKind::kGather:
      return Collective::kGather;
    case OperationKind::kScatter:
      return Collective::kScatter;
    default:
      return Collective::kAllReduce;
  }
}

}  // namespace

DirectCall::DirectCall(const Operation& operation, std::shared_ptr<DeviceQueue> queue,
                       const void* factor)
    : operation_(operation),
      comm_(*operation.comm),
      queue_(std::move(queue)),
      factor_(factor),
      call_(operation, operation.comm->weir()) {}

DirectCall::~DirectCall() = default;

Outcome DirectCall::advance(State* state, bool* moved) {
  *state = State::kGoing;
  *moved = true;
  Outcome outcome;
  switch (phase_) {
    case Phase::kBegin:
      phase_ = Phase::kExchange;
      return begin();
    case Phase::kExchange:
      if (*moved = call_.ended(&outcome); !*moved || !outcome.ok()) return outcome;
      outcome = compare();
      if (!outcome.ok()) return outcome;
      for (const Entry& it : entries_) {
        if (it.usable != 1) *state = State::kRefused;
      }
      if (*state == State::kRefused) return {};
      phase_ = Phase::kVote;
      return vote();
    case Phase::kVote:
      if (*moved = call_.ended(&outcome); !*moved || !outcome.ok()) return outcome;
      if (first_refusal_ != kNobody) {
        refused();
        *state = State::kRefused;
        return {};
      }
      phase_ = Phase::kWorking;
      failure_ = is_reduction(operation_.kind) ? reduce() : copy();
      return {};
    case Phase::kWorking:
      // After an error, too: what was enqueued still runs, and peers wait in the barrier.
      if (*moved = queue_->passed(mark_); !*moved) return {};
      if (failure_.ok()) failure_ = queue_->failure(operation_.function);
      phase_ = Phase::kBarrier;
      return start_barrier();
    case Phase::kBarrier:
      if (*moved = call_.ended(&outcome); !*moved || !outcome.ok()) return outcome;
      if (!failure_.ok()) return failure_;
      if (first_refusal_ != kNobody) {
        return {ncclRemoteError, fmt::format("{}: rank {} could not reduce its part on its device, "
                                             "so the result of this rank is incomplete",
                                             operation_.function, first_refusal_)};
      }
      if (is_reduction(operation_.kind)) {
        if (operation_.comm->devices().note(DeviceState::Event::kReduced) && comm_.rank() == 0) {
          explain(comm_, "device memory is reduced directly on the devices");
        }
      } else if (operation_.comm->devices().note(DeviceState::Event::kCopied) &&
                 comm_.rank() == 0) {
        explain(comm_, "device memory is copied directly between the ranks");
      }
      *state = State::kDone;
      return {};
  }
  return {};
}

void DirectCall::refused() {
  const bool told_here = first_refusal_ == static_cast<uint32_t>(comm_.rank());
  if (is_reduction(operation_.kind)) {
    operation_.comm->devices().give_up_reductions();
    if (told_here) {
      explain(comm_, "from now on, device memory is reduced through host memory: " + reason_);
    }
    return;
  }
  operation_.comm->devices().give_up_copies();
  if (told_here) {
    explain(comm_, "from now on, device memory is copied through host memory: " + reason_);
  }
}

Outcome DirectCall::begin() {
  const auto n = static_cast<size_t>(comm_.rank_count());
  Entry mine{};
  mine.kind = static_cast<uint32_t>(operation_.kind);
  mine.type = static_cast<uint32_t>(operation_.type);
  mine.root = operation_.peer;
  mine.count = operation_.count;
  mine.process = this_process();
  // Otherwise peers would read what this rank has overwritten.
  const bool in_place_exchange =
      operation_.kind == OperationKind::kAllToAll && operation_.send == operation_.recv;
  mine.usable = queue_ != nullptr && !in_place_exchange ? 1 : 0;
  if (mine.usable == 1) {
    const Cut whole = cut(operation_, 0);
    const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
    const bool others = !comm_.devices().in_one_process();
    const auto range = [&](const void* buffer, size_t blocks) {
      return range_of(queue_->driver(), buffer, others,
                      operation_.count * whole.element_bytes * blocks);
    };
    if (whole.send_blocks > 0) mine.send = range(operation_.send, whole.send_blocks);
    if (is_reduction(operation_.kind)) {
      if (whole.recv_blocks > 0 && operation_.kind != OperationKind::kReduceScatter) {
        mine.recv = range(operation_.recv, whole.recv_blocks);
      }
      kernels_ = reduce_kernels(queue_->driver(), &reason_);
      const auto fits = [&](const void* it) {
        return reinterpret_cast<uintptr_t>(it) % whole.element_bytes == 0;
      };
      const bool aligned =
          fits(operation_.send) && (whole.recv_blocks == 0 || fits(operation_.recv));
      if (!aligned) mine.usable = 0;
    }
  }
  if (is_reduction(operation_.kind)) {
    mine.op = factor_ != nullptr ? kScaledSum : static_cast<uint32_t>(operation_.op);
    if (factor_ != nullptr) std::memcpy(&mine.factor, factor_, element_bytes(operation_.type));
  }
  entries_.resize(n + 1);
  entries_[n] = mine;
  return call_.start([&](weir_comm_t comm, weir_request_t* request) {
    return gather_for_direct(comm, &entries_[n], entries_.data(), sizeof(Entry), request);
  });
}

// As the core describes calls that differ.
std::string DirectCall::describe(const Entry& entry) const {
  engine::Call call;
  call.collective = collective_of(static_cast<OperationKind>(entry.kind));
  call.type = static_cast<DataType>(entry.type);
  call.scaled = entry.op == kScaledSum;
  call.average = entry.op == WEIR_AVG;
  if (!call.scaled && !call.average) call.fold = static_cast<Fold>(entry.op);
  call.root = static_cast<Rank>(entry.root);
  call.count = entry.count;
  return engine::describe(call);
}

Outcome DirectCall::compare() const {
  const auto n = static_cast<size_t>(comm_.rank_count());
  std::map<std::string, std::vector<Rank>> calls;
  for (size_t rank = 0; rank < n; ++rank) {
    calls[describe(entries_[rank])].push_back(static_cast<Rank>(rank));
  }
  if (calls.size() == 1) return {};
  std::string text = fmt::format(
      "{}, rank {} of {}: the ranks made different calls:", operation_.function, comm_.rank(), n);
  for (const auto& [what, ranks] : calls) {
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  return invalid_usage(text +
                       " every rank must call the same collectives in the same order, with the "
                       "same count, type, operation and root");
}

// The ranks whose send buffers this rank copies from.
bool DirectCall::reach_all() {
  const auto n = static_cast<size_t>(comm_.rank_count());
  const auto root = static_cast<size_t>(operation_.peer);
  const Cut whole = cut(operation_, 0);
  sends_.resize(n);
  if (whole.recv_blocks == 0) return true;
  const size_t block_bytes = operation_.count * whole.element_bytes;
  const bool from_root =
      operation_.kind == OperationKind::kBroadcast || operation_.kind == OperationKind::kScatter;
  const bool blocks =
      operation_.kind == OperationKind::kAllToAll || operation_.kind == OperationKind::kScatter;
  const size_t bytes = block_bytes * (blocks ? n : 1);
  const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
  for (size_t rank = 0; rank < n; ++rank) {
    if (from_root && rank != root) continue;
    if (rank == static_cast<size_t>(comm_.rank())) {
      sends_[rank].address = const_cast<char*>(static_cast<const char*>(operation_.send));
      continue;
    }
    sends_[rank] = reach(queue_->driver(), entries_[rank].process, entries_[rank].send, bytes);
    if (!found(sends_[rank], rank)) return false;
  }
  return true;
}

bool DirectCall::found(const Reached& reached, size_t rank) {
  if (reached.address != nullptr) return true;
  reason_ =
      fmt::format("rank {} cannot reach rank {}'s memory: {}", comm_.rank(), rank, reached.reason);
  return false;
}

// All send buffers, and the receive buffers of the ranks that receive what others reduce.
bool DirectCall::reach_for_reduction() {
  if (kernels_ == nullptr) return false;
  const auto n = static_cast<size_t>(comm_.rank_count());
  const bool scatter = operation_.kind == OperationKind::kReduceScatter;
  const size_t bytes = operation_.count * element_bytes(operation_.type);
  const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
  const auto find = [&](std::vector<Reached>* all, const DeviceRange& range, size_t rank,
                        size_t range_bytes) {
    all->push_back(reach_by_kernel(queue_->driver(), entries_[rank].process, range, range_bytes));
    return found(all->back(), rank);
  };
  for (size_t rank = 0; rank < n; ++rank) {
    if (!find(&sends_, entries_[rank].send, rank, bytes * (scatter ? n : 1))) return false;
    if (scatter || (operation_.kind == OperationKind::kReduce &&
                    rank != static_cast<size_t>(operation_.peer))) {
      continue;
    }
    if (!find(&receives_, entries_[rank].recv, rank, bytes)) return false;
  }
  if (scatter) receives_.push_back({static_cast<char*>(operation_.recv), {}});
  return true;
}

Outcome DirectCall::vote() {
  const bool reached = is_reduction(operation_.kind) ? reach_for_reduction() : reach_all();
  refusal_ = reached ? kNobody : static_cast<uint32_t>(comm_.rank());
  return call_.start([&](weir_comm_t comm, weir_request_t* request) {
    return least_for_direct(comm, &refusal_, &first_refusal_, request);
  });
}

Outcome DirectCall::copy() {
  const Operation& it = operation_;
  const auto n = static_cast<size_t>(comm_.rank_count());
  const auto me = static_cast<size_t>(comm_.rank());
  const auto root = static_cast<size_t>(it.peer);
  const size_t bytes = it.count * element_bytes(it.type);
  auto* to = static_cast<char*>(it.recv);
  const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
  Outcome outcome;
  const auto move = [&](char* target, const char* source) {
    if (!outcome.ok() || target == source) return;
    outcome = queue_->copy(it.function, target, bytes, source, bytes, 1, bytes);
  };
  switch (it.kind) {
    case OperationKind::kBroadcast:
      move(to, sends_[root].address);
      break;
    case OperationKind::kScatter:
      move(to, sends_[root].address + me * bytes);
      break;
    case OperationKind::kGather:
      if (me != root) break;
      [[fallthrough]];
    case OperationKind::kAllGather:
      for (size_t i = 0; i < n; ++i) {
        // Every rank begins with a different peer.
        const size_t rank = (me + i) % n;
        move(to + rank * bytes, sends_[rank].address);
      }
      break;
    default:  // kAllToAll
      for (size_t i = 0; i < n; ++i) {
        const size_t rank = (me + i) % n;
        move(to + rank * bytes, sends_[rank].address + me * bytes);
      }
  }
  Outcome marked = queue_->mark(it.function);
  mark_ = queue_->latest();
  return outcome.ok() ? std::move(marked) : std::move(outcome);
}

Outcome DirectCall::reduce() {
  const Operation& it = operation_;
  const auto n = static_cast<size_t>(comm_.rank_count());
  const auto me = static_cast<size_t>(comm_.rank());
  const size_t bytes = element_bytes(it.type);
  size_t begin = 0;       // of this rank's part
  size_t end = it.count;  // in elements
  size_t block = 0;       // where the part's block begins in the send buffers
  if (it.kind == OperationKind::kReduceScatter) {
    block = me * it.count;
  } else {
    const size_t align = kPartAlign / bytes;
    const size_t part = ((it.count + n - 1) / n + align - 1) / align * align;
    begin = std::min(me * part, it.count);
    end = std::min(begin + part, it.count);
  }
  kernels::ReduceArguments arguments;
  arguments.count = end - begin;
  arguments.source_count = static_cast<uint32_t>(n);
  arguments.destination_count = static_cast<uint32_t>(receives_.size());
  arguments.fold = fold_of(it.op);
  arguments.divisor = it.op == WEIR_AVG ? static_cast<uint32_t>(n) : 1;
  if (factor_ != nullptr) {
    arguments.fold = kernels::ReduceFold::kSum;
    arguments.divisor = 1;
    arguments.scaled = 1;
  }
  for (size_t rank = 0; rank < n; ++rank) {
    arguments.sources[rank] = sends_[rank].address + (block + begin) * bytes;
    arguments.scales[rank] = entries_[rank].factor;
  }
  for (size_t i = 0; i < receives_.size(); ++i) {
    // Ranks start with different peers, so that no peer receives from all of them at the same time.
    arguments.destinations[i] = receives_[(me + i) % receives_.size()].address + begin * bytes;
  }
  const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
  Outcome outcome;
  if (arguments.count > 0) {
    const unsigned blocks = kernels::lay_out(&arguments, bytes);
    outcome = queue_->launch(it.function, kernels_->of(it.type), arguments, blocks);
  }
  Outcome marked = queue_->mark(it.function);
  mark_ = queue_->latest();
  return outcome.ok() ? std::move(marked) : std::move(outcome);
}

// The end of the call on all ranks.
Outcome DirectCall::start_barrier() {
  // A copy that failed concerns no other rank.
  refusal_ = failure_.ok() || !is_reduction(operation_.kind) ? kNobody
                                                             : static_cast<uint32_t>(comm_.rank());
  return call_.start([&](weir_comm_t comm, weir_request_t* request) {
    return least_for_direct(comm, &refusal_, &first_refusal_, request);
  });
}

}  // namespace weir::nccl
