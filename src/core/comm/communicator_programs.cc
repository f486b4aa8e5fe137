// SPDX-License-Identifier: Apache-2.0
// Programs of the caller's: all ranks add them, at the same place among their collectives.
//
// While a rank waits for the others, no collective of its threads begins (CollectiveQueue::hold).
// What is called meanwhile stands in the queue, and is chosen once all have added the programs, or
// none has. A collective that has begun goes on, and its rank tells the others that it has.
//
// A rank that cannot wait any longer for those that have not come tells all others, each of which
// then fails the same call. Messages on channel kChannel, integers little-endian:
//
//   offset  bytes  field
//        0      8  number of the call of add_program
//        8    ...  its failure, as pack_failure
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/comm/communicator.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/bootstrap_node.h"
#include "core/comm/start/program_files.h"

namespace weir::comm {

namespace {

constexpr uint8_t kChannel = 2;
// A rank that has begun other collectives may be about to come, and then says itself what it does.
constexpr uint64_t kAheadPatienceNs = 1'000'000'000;
constexpr const char* kCall = "weir_comm_add_program";

// What each rank gives: its state (1 byte), the number of its latest collective (8), and a text:
// hash and name of what it adds, or its error.
constexpr char kAgrees = '+';
constexpr char kCodes = 'a';  // and those after it, by Code
constexpr size_t kHeadBytes = 1 + sizeof(uint64_t);
constexpr size_t kTextBytesMax = 4096;

std::string with_number(uint64_t number, std::string_view text) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes.append(text);
}

uint64_t number_at(std::string_view bytes) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

Code code_of(char state) {
  for (const Code known : {Code::kInvalidUsage, Code::kUnsupported, Code::kNoMemory}) {
    if (state == static_cast<char>(kCodes + static_cast<int>(known))) return known;
  }
  return Code::kInvalidArgument;
}

// `ahead` has begun the collective `later`, `behind` none after `earlier`.
Status out_of_order(Rank ahead, uint64_t later, Rank behind, uint64_t earlier) {
  return Status(Code::kInvalidUsage,
                fmt::format("rank {} has begun operation {}, and rank {} has called {} after "
                            "operation {}: all ranks must call it between the same operations, and "
                            "no other thread may begin one meanwhile",
                            ahead, later, behind, kCall, earlier));
}

Status verdict(const std::vector<std::string>& all) {
  Rank first = 0;  // with the fewest collectives
  Rank last = 0;
  for (Rank p = 0; p < all.size(); ++p) {
    if (all[p].size() < kHeadBytes) {
      return Status(Code::kRefused, fmt::format("rank {} sent {} bytes about its program, not {}",
                                                p, all[p].size(), kHeadBytes));
    }
    if (all[p][0] != kAgrees) {
      return Status(code_of(all[p][0]), fmt::format("rank {}: {}", p, all[p].substr(kHeadBytes)));
    }
    const uint64_t number = number_at(std::string_view(all[p]).substr(1));
    if (number < number_at(std::string_view(all[first]).substr(1))) first = p;
    if (number > number_at(std::string_view(all[last]).substr(1))) last = p;
  }
  const uint64_t earliest = number_at(std::string_view(all[first]).substr(1));
  const uint64_t latest = number_at(std::string_view(all[last]).substr(1));
  if (earliest != latest) return out_of_order(last, latest, first, earliest);
  for (Rank p = 0; p < all.size(); ++p) {
    if (all[p] == all[0]) continue;
    return invalid_argument(fmt::format(
        "all ranks must add the same programs: rank 0 gave {}, rank {} gave {} (hash and name)",
        all[0].substr(kHeadBytes), p, all[p].substr(kHeadBytes)));
  }
  return {};
}

}  // namespace

Status Communicator::add_program(const std::string& name, std::string_view text, bool preferred,
                                 const Status& mistake) {
  // Of two threads that add programs, one waits for the other.
  const std::lock_guard adding(program_lock_);
  WEIR_RETURN_IF_ERROR(health());
  std::shared_ptr<const algo::Imported> program;
  Status status = mistake;
  if (status.ok()) {
    auto imported = import_programs(text, name, name);
    status = imported.status();
    if (imported.ok()) program = imported.take();
  }
  CollectiveQueue& queue = operations_.queue();
  uint64_t sequence = 0;
  {
    const std::lock_guard lock(state_.lock);
    if (status.ok()) status = check_program(*program);
    if (status.ok()) queue.hold();
    sequence = state_.context.sequence;
  }
  const std::string mine =
      fmt::format("{} {}{}", hash_of_program(text), name, preferred ? " (preferred)" : "");
  Status agreed = agree_on_program(program_count_++, sequence, status, mine);
  const std::lock_guard lock(state_.lock);
  if (agreed.ok()) queue.planner()->add(std::move(program), preferred);
  queue.release();
  return agreed;
}

Status Communicator::check_program(const algo::Imported& program) {
  const CollectiveQueue& queue = operations_.queue();
  const engine::Planner& planner = *queue.planner();
  const algo::Algorithm& algorithm = program.algorithm();
  const Rank made_for = program.program(0).rank_count;
  if (made_for != rank_count()) {
    return invalid_argument(fmt::format("'{}' holds programs of {} ranks, the communicator has {}",
                                        algorithm.name, made_for, rank_count()));
  }
  if (algo::find_algorithm(algorithm.collective, algorithm.name, planner.algorithms()) != nullptr) {
    return invalid_argument(
        fmt::format("'{}' is an algorithm of this communicator already; give the programs another "
                    "name",
                    algorithm.name));
  }
  WEIR_RETURN_IF_ERROR(planner.check_runnable(program));
  // Ranks would choose differently for operations that have been called and not begun.
  if (operations_.device_side().has_calls()) {
    return Status(Code::kInvalidUsage,
                  "the communicator has run operations on device memory; add programs before the "
                  "first of them");
  }
  if (!queue.is_empty()) {
    return Status(Code::kInvalidUsage, "operations are in flight; wait for them first");
  }
  return {};
}

Status Communicator::agree_on_program(uint64_t number, uint64_t sequence, const Status& status,
                                      const std::string& mine) {
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms()) * 1'000'000u;
  const uint64_t deadline_ns = now_ns() + timeout_ns;
  const uint64_t patient_until_ns = now_ns() + std::min(kAheadPatienceNs, timeout_ns / 4);
  JoinOptions joining = joining_in(kCall);
  if (rank_count() == 1) {
    joining.still_possible = {};
  } else {
    joining.still_possible = [=, this, alive = joining.still_possible] {
      return why_not_together(number, sequence, patient_until_ns, alive);
    };
  }
  auto bootstrap = Bootstrap::join(state_.secret.derive(fmt::format("program {}", number)), rank(),
                                   rank_count(), deadline_ns, place_of(0), joining);
  if (!bootstrap.ok()) return bootstrap.status();
  const char state =
      status.ok() ? kAgrees : static_cast<char>(kCodes + static_cast<int>(status.code()));
  const std::string& text = status.ok() ? mine : status.text();
  auto blobs = bootstrap.value()->all_gather(
      state + with_number(sequence, std::string_view(text).substr(0, kTextBytesMax)), deadline_ns);
  return blobs.ok() ? verdict(blobs.value()) : blobs.status();
}

Status Communicator::why_not_together(uint64_t number, uint64_t sequence, uint64_t patient_until_ns,
                                      const StillPossible& alive) {
  // Another rank may have to finish a collective of this one's before it comes.
  (void)try_poll();
  WEIR_RETURN_IF_ERROR(ended_program(number));
  Status reason = health();
  if (reason.ok()) reason = alive();
  if (reason.ok()) reason = health_.reported_failure();
  if (reason.ok() && now_ns() >= patient_until_ns) {
    const std::lock_guard lock(state_.lock);
    for (Rank p = 0; p < rank_count() && reason.ok(); ++p) {
      const uint64_t latest = p == rank() ? 0 : reports_.latest_call_of(p);
      if (latest > sequence) reason = out_of_order(p, latest, rank(), sequence);
    }
  }
  if (reason.ok()) return reason;
  const std::string message = with_number(number, pack_failure(reason));
  for (Rank p = 0; p < rank_count(); ++p) {
    if (p != rank()) (void)network_->send(p, kChannel, message);
  }
  return reason;
}

Status Communicator::ended_program(uint64_t number) {
  std::string message;
  for (Rank p = 0; p < rank_count(); ++p) {
    while (p != rank() && network_->receive(p, kChannel, &message)) {
      if (message.size() < sizeof number) continue;
      ended_programs_.emplace(number_at(message),
                              unpack_failure(std::string_view(message).substr(sizeof number)));
    }
  }
  ended_programs_.erase(ended_programs_.begin(), ended_programs_.lower_bound(number));
  const auto found = ended_programs_.find(number);
  return found == ended_programs_.end() ? Status() : found->second;
}

}  // namespace weir::comm
