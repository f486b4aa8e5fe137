// SPDX-License-Identifier: Apache-2.0
#include "nccl/forward/real_start.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/background.h"
#include "core/base/log.h"
#include "core/base/settings.h"
#include "nccl/api/translate.h"
#include "nccl/cuda/device_query.h"
#include "nccl/real/backend.h"
#include "nccl/real/recording.h"
#include "nccl/real/reentry.h"

namespace weir::nccl {

namespace {

using namespace std::chrono_literals;

// The pause between two exchanges: at first as short as a start can be.
constexpr auto kRoundPauseMin = 50us;
constexpr auto kRoundPauseMax = 20ms;
constexpr auto kPollPause = 1ms;

// A start of the real library in a thread of its own, which is abandoned when it waits for ever for
// a rank that has failed.
struct Attempt {
  ncclComm_t parent = nullptr;
  int device = 0;
  bool makes_one = true;
  MakeReal make;

  std::mutex lock;
  std::condition_variable ended;
  bool done = false;
  bool abandoned = false;
  ncclResult_t code = ncclInProgress;
  std::string text;
  ncclComm_t comm = nullptr;
};

// Polls until the communicator is no longer in progress, or the attempt is abandoned.
ncclResult_t poll(const Table& real, ncclComm_t comm, Attempt& attempt) {
  for (;;) {
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = real.CommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state != ncclInProgress) return state;
    {
      std::lock_guard lock(attempt.lock);
      if (attempt.abandoned) return ncclInProgress;
    }
    std::this_thread::sleep_for(kPollPause);
  }
}

ncclResult_t make(const Table& real, Attempt& attempt, ncclComm_t* comm) {
  ncclResult_t code = attempt.make(real, comm);
  // A communicator made from a nonblocking parent exists once the parent is no longer in progress.
  if (code == ncclInProgress && attempt.parent != nullptr) {
    code = poll(real, attempt.parent, attempt);
    if (code == ncclSuccess && *comm != nullptr) code = poll(real, *comm, attempt);
  } else if (code == ncclInProgress && *comm != nullptr) {
    code = poll(real, *comm, attempt);
  }
  return code;
}

void run_attempt(const std::shared_ptr<Attempt>& attempt) noexcept {
  const Table& real = *backend().real;
  const InsideReal inside;
  ncclResult_t code = ncclInternalError;
  std::string text;
  ncclComm_t comm = nullptr;
  try {
    if (cuda_is_there() && !cuda_choose_device(attempt->device)) {
      code = ncclUnhandledCudaError;
      text = fmt::format("device {} cannot be made current", attempt->device);
    } else {
      code = make(real, *attempt, &comm);
      if (code != ncclSuccess) text = text_of(real, code);
    }
  } catch (...) {
    code = ncclSystemError;
  }
  std::unique_lock lock(attempt->lock);
  const bool wanted = code == ncclSuccess && !attempt->abandoned;
  if (wanted) attempt->comm = comm;
  if (code == ncclSuccess && (comm != nullptr) != attempt->makes_one) code = ncclInternalError;
  attempt->code = code;
  attempt->text = std::move(text);
  attempt->done = true;
  attempt->ended.notify_all();
  lock.unlock();
  if (!wanted && comm != nullptr) (void)real.CommAbort(comm);
}

// Where no thread can be started, the attempt has failed, which the other ranks must learn.
void begin(const std::shared_ptr<Attempt>& attempt) {
  try {
    run_in_background([attempt] { run_attempt(attempt); });
  } catch (...) {
    Outcome outcome = outcome_of_exception("starting NCCL", std::current_exception());
    std::lock_guard lock(attempt->lock);
    attempt->done = true;
    attempt->code = outcome.code;
    attempt->text = std::move(outcome.text);
  }
}

// The attempt is not needed any more: aborts the communicator that it has made or will make.
void abandon(Attempt& attempt) {
  std::unique_lock lock(attempt.lock);
  attempt.abandoned = true;
  ncclComm_t comm = std::exchange(attempt.comm, nullptr);
  lock.unlock();
  const InsideReal inside;
  if (comm != nullptr) (void)backend().real->CommAbort(comm);
}

// Waits for the attempt for at most `pause`.
StartState state_of(Attempt& attempt, std::chrono::microseconds pause) {
  std::unique_lock lock(attempt.lock);
  attempt.ended.wait_for(lock, pause, [&] { return attempt.done; });
  if (!attempt.done) return StartState::kRunning;
  return attempt.code == ncclSuccess ? StartState::kDone : StartState::kFailed;
}

std::chrono::milliseconds start_deadline(const RealStart& start) {
  const int64_t own = start.comm != nullptr ? start.comm->config().weir().timeout_ms : 0;
  if (own > 0) return std::chrono::milliseconds(own);
  const Result<Settings>& settings = process_settings();
  return std::chrono::milliseconds(settings.ok() ? settings.value().timeout_ms : 300000);
}

// Exchanges until all are done or one has failed. `up`: all members are done.
Outcome start_everywhere(const RealStart& start, Attempt& attempt, bool* all_up, bool* up) {
  const auto deadline = std::chrono::steady_clock::now() + start_deadline(start);
  std::chrono::microseconds pause = kRoundPauseMin;
  for (;;) {
    StartState mine = state_of(attempt, pause);
    if (start.all->aborted()) mine = StartState::kFailed;
    if (mine == StartState::kRunning && std::chrono::steady_clock::now() > deadline) {
      std::lock_guard lock(attempt.lock);
      attempt.text = "it did not start before the deadline";
      mine = StartState::kFailed;
    }
    StartState worst = StartState::kFailed;
    Outcome outcome = start.all->minimum(mine, &worst);
    if (!outcome.ok()) return outcome;
    if (worst == StartState::kRunning) {
      pause = std::min<std::chrono::microseconds>(pause * 2, kRoundPauseMax);
      continue;
    }
    *all_up = *up = worst == StartState::kDone;
    if (*up || start.members == nullptr || start.members == start.all) return {};
    // The rank that failed may belong to another of the new communicators.
    if (start.members->aborted()) mine = StartState::kFailed;
    outcome = start.members->minimum(mine, &worst);
    *up = outcome.ok() && worst == StartState::kDone;
    return outcome;
  }
}

// What one rank tells the others about its failure.
struct Failure {
  int32_t code = ncclSuccess;
  char text[252] = {};

  void say(ncclResult_t why, std::string_view what) {
    code = why;
    const size_t bytes = std::min(what.size(), sizeof text - 1);
    std::memcpy(text, what.data(), bytes);
    text[bytes] = '\0';
  }
  std::string said() const { return std::string(text, strnlen(text, sizeof text)); }
};

// After a failure: the first rank that failed, and its text.
Outcome first_failure(const RealStart& start, Attempt& attempt, std::string* text,
                      ncclResult_t* code) {
  Failure mine;
  {
    std::lock_guard lock(attempt.lock);
    if (attempt.done && attempt.code != ncclSuccess) {
      mine.say(attempt.code, attempt.text);
    } else if (!attempt.text.empty()) {
      mine.say(ncclTimeout, attempt.text);
    }
  }
  std::vector<Failure> all;
  Outcome outcome = start.all->all_gather(mine, &all);
  if (!outcome.ok()) return outcome;
  *text = "another thread aborted the communicator while the real NCCL started";
  *code = ncclInternalError;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == ncclSuccess) continue;
    *text = fmt::format("the real NCCL {} failed on rank {}: {}", backend().library->version_text(),
                        rank, all[rank].said());
    *code = static_cast<ncclResult_t>(all[rank].code);
    break;
  }
  return {};
}

// What members tell each other once the communicator is up.
struct Member {
  PackedAddresses addresses{};
  unsigned char pad[3] = {};
  uint64_t instance = 0;
};
static_assert(sizeof(Member) == 88);

// From now on the real library serves the communicator.
Outcome take_over(const RealStart& start, Attempt& attempt) {
  Member mine;
  mine.addresses = packed_addresses_of_this_host();
  mine.instance = comm::ClockReading::now().wall_ns ^ static_cast<uint64_t>(getpid()) << 40;
  std::vector<Member> all;
  Outcome outcome = start.members->all_gather(mine, &all);
  if (!outcome.ok()) return outcome;
  std::vector<PackedAddresses> addresses;
  for (const Member& it : all) addresses.push_back(it.addresses);
  const int rank = start.members->rank();
  const int rank_count = start.members->rank_count();
  std::lock_guard lock(attempt.lock);
  start_recording(attempt.comm, {start.secret.public_id(), all[0].instance, rank, rank_count,
                                 start.comm->config().name, start.earlier});
  start.comm->set_derived_ids(
      std::make_shared<DerivedIds>(start.secret, std::move(addresses), start.forced));
  start.comm->forward_to(std::exchange(attempt.comm, nullptr), rank, rank_count);
  return {};
}

std::string title(const Comm& comm, const AbortableCollectives& collectives) {
  std::string text = fmt::format("communicator of {} ranks", collectives.rank_count());
  if (!comm.config().name.empty()) text += fmt::format(" '{}'", comm.config().name);
  return text;
}

}  // namespace

std::string text_of(const Table& real, ncclResult_t code) {
  const char* what = real.GetErrorString(code);
  const char* more = real.GetLastError(nullptr);
  std::string text = what != nullptr && *what != '\0' ? what : describe(code);
  if (more != nullptr && *more != '\0') text += fmt::format(" ({})", more);
  return text;
}

void explain_backend(const Comm& comm, const AbortableCollectives& collectives,
                     const std::string& text) {
  if (collectives.rank() != 0) return;
  const std::string line = fmt::format("{}: {}", title(comm, collectives), text);
  log_info(line);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain) std::fprintf(stderr, "%s\n", line.c_str());
}

Outcome fall_back_or_fail(const RealStart& start, ncclResult_t code, const std::string& why) {
  if (start.all->aborted() || (start.members != nullptr && start.members->aborted())) {
    return {ncclInternalError, fmt::format("{}: aborted by another thread", start.function)};
  }
  if (start.forced) {
    return {code, fmt::format("{}: {}; WEIR_BACKEND=nccl does not allow Weir's transports instead",
                              start.function, why)};
  }
  // Wrong arguments would be an error with Weir, too.
  if (start.from_another && code == ncclInvalidArgument) {
    return {code, fmt::format("{}: {}", start.function, why)};
  }
  if (start.comm == nullptr) return {};
  if (start.members->rank() == 0) {
    log_warn(fmt::format("{}: {}; it uses Weir's transports instead",
                         title(*start.comm, *start.members), why));
  }
  explain_backend(*start.comm, *start.members, "Weir's transports: " + why);
  return {};
}

Outcome start_real(const RealStart& start) {
  const auto attempt = std::make_shared<Attempt>();
  attempt->parent = start.parent;
  attempt->device = start.device;
  attempt->makes_one = start.comm != nullptr;
  attempt->make = start.make;
  begin(attempt);
  bool all_up = false;
  bool up = false;
  Outcome outcome = start_everywhere(start, *attempt, &all_up, &up);
  std::string why;
  ncclResult_t code = ncclSuccess;
  // Collective over all: also ranks whose own communicator is up take part.
  if (outcome.ok() && !all_up) outcome = first_failure(start, *attempt, &why, &code);
  if (outcome.ok() && up) {
    if (start.comm == nullptr) return {};
    outcome = take_over(start, *attempt);
    if (outcome.ok()) {
      const RealLibrary& library = *backend().library;
      explain_backend(*start.comm, *start.members,
                      fmt::format("the real NCCL {} ({}, {}): {}", library.version_text(),
                                  library.path(), library.found_by(), start.reason));
      return {};
    }
  }
  abandon(*attempt);
  return outcome.ok() ? fall_back_or_fail(start, code, why) : outcome;
}

}  // namespace weir::nccl
