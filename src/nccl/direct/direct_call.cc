// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_call.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/base/log.h"
#include "core/base/settings.h"
#include "nccl/stream/slices.h"
#include "nccl/translate.h"

namespace weir::nccl {

// What each rank tells.
struct DirectCall::Entry {
  uint32_t kind;
  uint32_t type;
  int32_t root;
  uint32_t usable;  // 1: its buffers lie on a device, and peers may copy from them
  uint64_t count;
  ProcessNumber process;
  DeviceRange send;
};

namespace {

bool is_copy(OperationKind kind) {
  return kind == OperationKind::kBroadcast || kind == OperationKind::kAllGather ||
         kind == OperationKind::kAllToAll || kind == OperationKind::kGather ||
         kind == OperationKind::kScatter;
}

}  // namespace

bool goes_direct(const Operation& operation) {
  if (!is_copy(operation.kind) || !operation.comm->direct() || operation.options.need_sibling()) {
    return false;
  }
  const Cut whole = cut(operation, 0);
  return operation.count * whole.element_bytes * whole.larger_blocks >= kDirectBytesMin;
}

bool can_go_direct() {
  const cuda::Driver* driver = cuda::driver_in_use();
  return driver != nullptr && driver->can_make_streams() && direct_allowed();
}

DirectCall::DirectCall(const Operation& operation, std::shared_ptr<DeviceQueue> queue)
    : operation_(operation), comm_(*operation.comm), queue_(std::move(queue)) {}

DirectCall::~DirectCall() {
  // Weir's operations hold buffers of this until they have ended, which they do by their deadlines.
  if (request_ == nullptr) return;
  [[maybe_unused]] const weir_result_t ended = weir_wait(&request_);
}

template <typename Call>
Outcome DirectCall::start(Call call) {
  weir_comm_t comm = comm_.weir();
  const int64_t deadline_ms = operation_.options.timeout_ms;
  if (deadline_ms > 0) {
    Outcome outcome = comm_.outcome(operation_.function, weir_comm_set_timeout(comm, deadline_ms));
    if (!outcome.ok()) return outcome;
  }
  Outcome outcome = comm_.outcome(operation_.function, call(comm, &request_));
  if (!outcome.ok()) request_ = nullptr;
  if (deadline_ms > 0) {
    const weir_result_t reset = weir_comm_set_timeout(comm, comm_.config().timeout_ms());
    if (outcome.ok() && reset != WEIR_OK) return comm_.outcome(operation_.function, reset);
  }
  return outcome;
}

bool DirectCall::ended(Outcome* outcome) {
  if (request_ == nullptr) return true;
  int done = 0;
  const weir_result_t result = weir_test(&request_, &done);
  if (done == 0 && request_ != nullptr) return false;
  request_ = nullptr;
  if (result != WEIR_OK) *outcome = comm_.outcome(operation_.function, result);
  return true;
}

Outcome DirectCall::advance(State* state, bool* moved) {
  *state = State::kGoing;
  *moved = true;
  Outcome outcome;
  switch (phase_) {
    case Phase::kBegin:
      phase_ = Phase::kTelling;
      return begin();
    case Phase::kTelling:
      if (*moved = ended(&outcome); !*moved || !outcome.ok()) return outcome;
      outcome = compare();
      if (!outcome.ok()) return outcome;
      for (const Entry& it : entries_) {
        if (it.usable != 1) *state = State::kRefused;
      }
      if (*state == State::kRefused) return {};
      phase_ = Phase::kVoting;
      return vote();
    case Phase::kVoting:
      if (*moved = ended(&outcome); !*moved || !outcome.ok()) return outcome;
      if (first_refusal_ != kNobody) {
        operation_.comm->give_up_direct();
        if (first_refusal_ == static_cast<uint32_t>(comm_.rank())) {
          explain("memory of devices goes through host memory from now on: " + reason_);
        }
        *state = State::kRefused;
        return {};
      }
      phase_ = Phase::kCopying;
      failure_ = copy();
      return {};
    case Phase::kCopying:
      // After an error, too: what has been put in is under way, and peers wait to be met.
      if (*moved = queue_->passed(mark_); !*moved) return {};
      phase_ = Phase::kMeeting;
      return start(
          [](weir_comm_t comm, weir_request_t* request) { return weir_barrier(comm, request); });
    case Phase::kMeeting:
      if (*moved = ended(&outcome); !*moved || !outcome.ok()) return outcome;
      if (!failure_.ok()) return failure_;
      if (operation_.comm->note_direct() && comm_.rank() == 0) {
        explain("memory of devices goes from rank to rank directly");
      }
      *state = State::kDone;
      return {};
  }
  return {};
}

Outcome DirectCall::begin() {
  const auto n = static_cast<size_t>(comm_.rank_count());
  Entry mine{};
  mine.kind = static_cast<uint32_t>(operation_.kind);
  mine.type = static_cast<uint32_t>(operation_.type);
  mine.root = operation_.peer;
  mine.count = operation_.count;
  mine.process = this_process();
  // Peers would read what this rank has overwritten.
  const bool in_place_exchange =
      operation_.kind == OperationKind::kAllToAll && operation_.send == operation_.recv;
  mine.usable = queue_ != nullptr && !in_place_exchange ? 1 : 0;
  if (mine.usable == 1 && cut(operation_, 0).send_blocks > 0) {
    const cuda::ContextScope scope(queue_->driver(), nullptr, queue_->context());
    mine.send = range_of(queue_->driver(), operation_.send, !comm_.in_one_process());
  }
  entries_.resize(n + 1);
  entries_[n] = mine;
  return start([&](weir_comm_t comm, weir_request_t* request) {
    return weir_all_gather(comm, &entries_[n], entries_.data(), sizeof(Entry), WEIR_UINT8, request);
  });
}

Outcome DirectCall::compare() const {
  const auto me = static_cast<size_t>(comm_.rank());
  const auto n = static_cast<size_t>(comm_.rank_count());
  const Entry& mine = entries_[me];
  for (size_t rank = 0; rank < n; ++rank) {
    const Entry& it = entries_[rank];
    if (it.kind == mine.kind && it.count == mine.count && it.root == mine.root &&
        it.type == mine.type) {
      continue;
    }
    return invalid_usage(
        fmt::format("{}: rank {} calls operation {} with count {}, type {} and root {}, rank {} "
                    "operation {} with "
                    "count {}, type {} and root {}: they are the same on all ranks",
                    operation_.function, me, mine.kind, mine.count, mine.type, mine.root, rank,
                    it.kind, it.count, it.type, it.root));
  }
  return {};
}

// Those whose send buffers this rank copies from.
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
    if (sends_[rank].address == nullptr) {
      reason_ = fmt::format("rank {} cannot reach rank {}'s memory: {}", comm_.rank(), rank,
                            sends_[rank].reason);
      return false;
    }
  }
  return true;
}

Outcome DirectCall::vote() {
  refusal_ = reach_all() ? kNobody : static_cast<uint32_t>(comm_.rank());
  return start([&](weir_comm_t comm, weir_request_t* request) {
    return weir_all_reduce(comm, &refusal_, &first_refusal_, 1, WEIR_UINT32, WEIR_MIN, request);
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
        // Everybody begins with another one.
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

void DirectCall::explain(const std::string& text) const {
  std::string line = fmt::format("communicator of {} ranks", comm_.rank_count());
  if (!comm_.config().name.empty()) line += fmt::format(" '{}'", comm_.config().name);
  line += ": " + text;
  log_info(line);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain) std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace weir::nccl
