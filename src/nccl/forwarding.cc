// SPDX-License-Identifier: Apache-2.0
#include "nccl/forwarding.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include "api/unique_id.h"
#include "core/base/log.h"
#include "core/base/secret.h"
#include "core/base/settings.h"
#include "nccl/background.h"
#include "nccl/choice.h"
#include "nccl/cuda_driver.h"
#include "nccl/recording.h"
#include "nccl/reentry.h"
#include "nccl/translate.h"

namespace weir::nccl {

namespace {

using namespace std::chrono_literals;

// A configuration of a later version may be longer than the one that this header knows.
constexpr size_t kConfigBytesMax = 4096;

// Versions that have given the strings their place.
constexpr unsigned kNetNameSince = 21700;
constexpr unsigned kCommNameSince = 22700;

// How often the ranks exchange how far they are: at first as quick as a start can be.
constexpr auto kRoundPauseMin = 50us;
constexpr auto kRoundPauseMax = 20ms;
constexpr auto kPollPause = 1ms;

// What a rank says of its start, the worst being the least.
enum class Standing : int32_t { kFailed = 0, kRunning = 1, kDone = 2 };

// What one rank tells the others about a failure, or rank 0 about the id.
struct News {
  int32_t code = ncclSuccess;
  char text[252] = {};
  ncclUniqueId id{};
  uint64_t instance = 0;  // of the record of the calls

  void say(ncclResult_t why, std::string_view what) {
    code = why;
    const size_t bytes = std::min(what.size(), sizeof text - 1);
    std::memcpy(text, what.data(), bytes);
    text[bytes] = '\0';
  }
  std::string said() const { return std::string(text, strnlen(text, sizeof text)); }
};

// A start of the real library, in a thread of its own: it may wait for ever for a rank that has
// failed, and is then left to itself.
struct Attempt {
  std::mutex lock;
  std::condition_variable ended;
  bool done = false;
  bool abandoned = false;
  ncclResult_t code = ncclInProgress;
  std::string text;
  ncclComm_t comm = nullptr;
};

std::string text_of(const Table& real, ncclResult_t code) {
  const char* what = real.GetErrorString(code);
  const char* more = real.GetLastError(nullptr);
  std::string text = what != nullptr && *what != '\0' ? what : describe(code);
  if (more != nullptr && *more != '\0') text += fmt::format(" ({})", more);
  return text;
}

void run_attempt(const std::shared_ptr<Attempt>& attempt, const Forwarding& forwarding,
                 const ncclUniqueId& id, int rank_count, int rank) noexcept {
  const Table& real = *backend().real;
  const InsideReal inside;
  ncclResult_t code = ncclInternalError;
  std::string text;
  ncclComm_t comm = nullptr;
  try {
    if (cuda_is_there() && !cuda_choose_device(forwarding.device())) {
      code = ncclUnhandledCudaError;
      text = fmt::format("device {} cannot be chosen", forwarding.device());
    } else {
      std::vector<unsigned char> place;
      ncclConfig_t* config = forwarding.config(&place);
      code = config != nullptr ? real.CommInitRankConfig(&comm, rank_count, id, rank, config)
                               : real.CommInitRank(&comm, rank_count, id, rank);
      while (code == ncclInProgress && comm != nullptr) {
        ncclResult_t state = ncclInProgress;
        const ncclResult_t asked = real.CommGetAsyncError(comm, &state);
        code = asked != ncclSuccess ? asked : state;
        if (code != ncclInProgress) break;
        {
          std::lock_guard lock(attempt->lock);
          if (attempt->abandoned) break;
        }
        std::this_thread::sleep_for(kPollPause);
      }
      if (code != ncclSuccess) text = text_of(real, code);
    }
  } catch (...) {
    code = ncclSystemError;
  }
  std::unique_lock lock(attempt->lock);
  const bool wanted = code == ncclSuccess && comm != nullptr && !attempt->abandoned;
  if (wanted) attempt->comm = comm;
  if (code == ncclSuccess && comm == nullptr) code = ncclInternalError;
  attempt->code = code;
  attempt->text = std::move(text);
  attempt->done = true;
  attempt->ended.notify_all();
  lock.unlock();
  if (!wanted && comm != nullptr) (void)real.CommAbort(comm);
}

// The meeting: collectives on the communicator of Weir's, which another thread's abort ends.
class Meeting {
 public:
  Meeting(const char* function, Comm& comm, weir_comm_t weir)
      : function_(function),
        comm_(comm),
        weir_(weir),
        rank_(comm.rank()),
        rank_count_(comm.rank_count()) {}

  int rank() const { return rank_; }
  int rank_count() const { return rank_count_; }

  template <typename Value>
  Outcome all_gather(const Value& mine, std::vector<Value>* all) {
    all->resize(static_cast<size_t>(rank_count_));
    weir_request_t request = nullptr;
    const weir_result_t started =
        weir_all_gather(weir_, &mine, all->data(), sizeof mine, WEIR_UINT8, &request);
    return finish(started, &request);
  }

  template <typename Value>
  Outcome broadcast(Value* value) {
    weir_request_t request = nullptr;
    const weir_result_t started =
        weir_broadcast(weir_, value, value, sizeof *value, WEIR_UINT8, 0, &request);
    return finish(started, &request);
  }

  Outcome least(Standing mine, Standing* of_all) {
    auto value = static_cast<int32_t>(mine);
    weir_request_t request = nullptr;
    const weir_result_t started =
        weir_all_reduce(weir_, &value, &value, 1, WEIR_INT32, WEIR_MIN, &request);
    Outcome outcome = finish(started, &request);
    *of_all = static_cast<Standing>(value);
    return outcome;
  }

 private:
  // The buffers are the caller's: it returns when they are free.
  Outcome finish(weir_result_t result, weir_request_t* request) {
    bool aborted = false;
    for (int looked = 0; result == WEIR_OK && *request != nullptr; ++looked) {
      int done = 0;
      result = weir_test(request, &done);
      if (done != 0 || result != WEIR_OK) break;
      if (comm_.aborted() && !aborted) {
        aborted = true;
        (void)weir_comm_abort(weir_);
      }
      if (looked < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(100us);
      }
    }
    if (result == WEIR_OK) return {};
    return {to_nccl(result, comm_.aborted()),
            fmt::format("{}: while the ranks agreed on the real NCCL or Weir: {}", function_,
                        weir_last_error(nullptr))};
  }

  const char* function_;
  Comm& comm_;
  weir_comm_t weir_;
  int rank_;
  int rank_count_;
};

// Where there can be no thread, the attempt has failed: the other ranks are to learn of it.
void start_attempt(const std::shared_ptr<Attempt>& attempt, const Forwarding& forwarding,
                   const ncclUniqueId& id, const Meeting& meeting) {
  try {
    run_in_background([attempt, forwarding, id, n = meeting.rank_count(), rank = meeting.rank()] {
      run_attempt(attempt, forwarding, id, n, rank);
    });
  } catch (...) {
    Outcome outcome = outcome_of_exception("starting NCCL", std::current_exception());
    std::lock_guard lock(attempt->lock);
    attempt->done = true;
    attempt->code = outcome.code;
    attempt->text = std::move(outcome.text);
  }
}

// As Weir's communicators are named.
uint64_t public_id_of(const weir_unique_id_t& id) {
  Secret secret;
  std::memcpy(secret.bytes.data(), id.bytes + kIdSecretOffset, secret.bytes.size());
  return secret.public_id();
}

std::string title(const Comm& comm, const Meeting& meeting) {
  std::string text = fmt::format("communicator of {} ranks", meeting.rank_count());
  if (!comm.config().name.empty()) text += fmt::format(" '{}'", comm.config().name);
  return text;
}

// Rank 0 speaks for all.
void explain(const Comm& comm, const Meeting& meeting, const std::string& text) {
  if (meeting.rank() != 0) return;
  const std::string line = fmt::format("{}: {}", title(comm, meeting), text);
  log_info(line);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain) std::fprintf(stderr, "%s\n", line.c_str());
}

std::chrono::milliseconds start_deadline(const Comm& comm) {
  const int64_t own = comm.config().weir().timeout_ms;
  if (own > 0) return std::chrono::milliseconds(own);
  const Result<Settings>& settings = process_settings();
  return std::chrono::milliseconds(settings.ok() ? settings.value().timeout_ms : 300000);
}

// Not needed any more: what it has made or will make is ended.
void abandon(Attempt& attempt) {
  std::unique_lock lock(attempt.lock);
  attempt.abandoned = true;
  ncclComm_t comm = std::exchange(attempt.comm, nullptr);
  lock.unlock();
  const InsideReal inside;
  if (comm != nullptr) (void)backend().real->CommAbort(comm);
}

// Waits for the attempt, for so long.
Standing standing_of(Attempt& attempt, std::chrono::microseconds pause) {
  std::unique_lock lock(attempt.lock);
  attempt.ended.wait_for(lock, pause, [&] { return attempt.done; });
  if (!attempt.done) return Standing::kRunning;
  return attempt.code == ncclSuccess ? Standing::kDone : Standing::kFailed;
}

// Rounds, until all are done or one has failed. The attempt's communicator is `comm`'s then.
Outcome start_everywhere(Meeting& meeting, Attempt& attempt, Comm& comm, bool* up) {
  const auto deadline = std::chrono::steady_clock::now() + start_deadline(comm);
  std::chrono::microseconds pause = kRoundPauseMin;
  for (;;) {
    Standing mine = standing_of(attempt, pause);
    if (comm.aborted()) mine = Standing::kFailed;
    if (mine == Standing::kRunning && std::chrono::steady_clock::now() > deadline) {
      std::lock_guard lock(attempt.lock);
      attempt.text = "it did not start before the deadline";
      mine = Standing::kFailed;
    }
    Standing least = Standing::kFailed;
    Outcome outcome = meeting.least(mine, &least);
    if (!outcome.ok()) return outcome;
    *up = least == Standing::kDone;
    if (least != Standing::kRunning) return {};
    pause = std::min<std::chrono::microseconds>(pause * 2, kRoundPauseMax);
  }
}

// After a failure: who was the first, and what it says.
Outcome first_failure(Meeting& meeting, Attempt& attempt, std::string* text, ncclResult_t* code) {
  News mine;
  {
    std::lock_guard lock(attempt.lock);
    if (attempt.done && attempt.code != ncclSuccess) {
      mine.say(attempt.code, attempt.text);
    } else if (!attempt.text.empty()) {
      mine.say(ncclTimeout, attempt.text);
    }
  }
  std::vector<News> all;
  Outcome outcome = meeting.all_gather(mine, &all);
  if (!outcome.ok()) return outcome;
  *text = "the real NCCL was given up by another thread's abort";
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

}  // namespace

Forwarding::Forwarding(const ncclConfig_t* given, int device) : device_(device) {
  if (given == nullptr || given->size > kConfigBytesMax) return;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  config_.assign(bytes, bytes + given->size);
  const auto keep = [&](size_t offset, unsigned since, std::string* text) {
    const char* value = nullptr;
    if (offset + sizeof value > config_.size() || given->version < since) return false;
    std::memcpy(&value, config_.data() + offset, sizeof value);
    if (value != nullptr) *text = value;
    return value != nullptr;
  };
  has_net_name_ = keep(offsetof(ncclConfig_t, netName), kNetNameSince, &net_name_);
  has_comm_name_ = keep(offsetof(ncclConfig_t, commName), kCommNameSince, &comm_name_);
}

ncclConfig_t* Forwarding::config(std::vector<unsigned char>* place) const {
  if (config_.empty()) return nullptr;
  *place = config_;
  const auto put = [&](size_t offset, const std::string& text) {
    const char* value = text.c_str();
    std::memcpy(place->data() + offset, &value, sizeof value);
  };
  if (has_net_name_) put(offsetof(ncclConfig_t, netName), net_name_);
  if (has_comm_name_) put(offsetof(ncclConfig_t, commName), comm_name_);
  return reinterpret_cast<ncclConfig_t*>(place->data());
}

Outcome Forwarding::agree(const char* function, Comm& comm, weir_comm_t weir,
                          const weir_unique_id_t& id) const {
  const comm::ClockReading earlier = comm::ClockReading::now();
  Meeting meeting(function, comm, weir);
  std::vector<Candidate> candidates;
  Outcome outcome = meeting.all_gather(candidate_of(backend(), device_), &candidates);
  if (!outcome.ok()) return outcome;
  const Choice choice = choose(candidates);
  if (choice.impossible) return {ncclInvalidUsage, fmt::format("{}: {}", function, choice.reason)};
  if (!choice.real) {
    explain(comm, meeting, "Weir's transports: " + choice.reason);
    return {};
  }
  const bool forced = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& it) {
    return it.wish == static_cast<uint32_t>(Wish::kNccl);
  });

  const RealLibrary& library = *backend().library;
  const Table& real = *backend().real;
  News root;
  if (meeting.rank() == 0) {
    const InsideReal inside;
    const ncclResult_t code = real.GetUniqueId(&root.id);
    if (code != ncclSuccess) root.say(code, text_of(real, code));
    root.instance = comm::ClockReading::now().wall_ns ^ static_cast<uint64_t>(getpid()) << 40;
  }
  outcome = meeting.broadcast(&root);
  if (!outcome.ok()) return outcome;

  std::string why;
  ncclResult_t code = static_cast<ncclResult_t>(root.code);
  if (code == ncclSuccess) {
    const auto attempt = std::make_shared<Attempt>();
    start_attempt(attempt, *this, root.id, meeting);
    bool up = false;
    outcome = start_everywhere(meeting, *attempt, comm, &up);
    if (outcome.ok() && up) {
      std::lock_guard lock(attempt->lock);
      start_recording(attempt->comm, {public_id_of(id), root.instance, comm.rank(),
                                      comm.rank_count(), comm.config().name, earlier});
      comm.forward_to(std::exchange(attempt->comm, nullptr));
      explain(comm, meeting,
              fmt::format("the real NCCL {} ({}, {}): {}", library.version_text(), library.path(),
                          library.found_by(), choice.reason));
      return {};
    }
    if (outcome.ok()) outcome = first_failure(meeting, *attempt, &why, &code);
    abandon(*attempt);
    if (!outcome.ok()) return outcome;
  } else {
    why = fmt::format("the real NCCL {} gives no unique id on rank 0: {}", library.version_text(),
                      root.said());
  }
  if (comm.aborted()) {
    return {ncclInternalError, fmt::format("{}: aborted by another thread", function)};
  }
  if (forced) {
    return {code, fmt::format("{}: {}; WEIR_BACKEND=nccl allows nothing else", function, why)};
  }
  if (meeting.rank() == 0) {
    log_warn(fmt::format("{}: {}; it goes on with Weir's transports", title(comm, meeting), why));
  }
  explain(comm, meeting, "Weir's transports: " + why);
  return {};
}

}  // namespace weir::nccl
