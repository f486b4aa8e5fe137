// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/outcome.h"

#include <strings.h>

#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/per_thread.h"
#include "nccl/base/environment.h"
#include "nccl/base/texts.h"

namespace weir::nccl {

namespace {

struct ThreadTexts {
  std::string error;
  // The real library's latest text at the time of this thread's latest error, and whether this
  // thread has reported one.
  std::string real_text;
  bool has_reported = false;
  bool is_of_communicator = false;
};
ThreadTexts& mine() { return PerThread<ThreadTexts>::get(); }

// Threads may report while the process ends: never destroyed.
struct LastOfProcess {
  std::mutex lock;
  std::string text;
};
LastOfProcess& last_of_process() {
  static constinit PerProcess<LastOfProcess> it;
  return it.get();
}

// The texts that callers were given, each once, the latest last.
constexpr size_t kHeldMax = 4096;
struct HeldTexts {
  std::mutex lock;
  std::list<std::string> texts;
  std::unordered_map<std::string_view, std::list<std::string>::iterator> known;
};
HeldTexts& held_texts() {
  static constinit PerProcess<HeldTexts> it;
  return it.get();
}

// ncclGetLastError of the real library; nullptr: there is none.
std::atomic<const char* (*)(ncclComm_t)> real_last_error{nullptr};

void note_real_text() {
  const auto ask = real_last_error.load(std::memory_order_acquire);
  const char* text = ask != nullptr ? ask(nullptr) : nullptr;
  mine().real_text = text != nullptr ? text : "";
  mine().has_reported = true;
}

// With NCCL_DEBUG=WARN or more, every failed call is logged.
bool are_errors_logged() {
  const char* level = std::getenv("NCCL_DEBUG");
  if (level == nullptr) return false;
  for (const char* loud : {"WARN", "INFO", "ABORT", "TRACE"}) {
    if (strcasecmp(level, loud) == 0) return true;
  }
  return false;
}

void log_error_of(const std::string& text) {
  if (!are_errors_logged()) return;
  (void)apply_environment("the log");  // which sets the log's file
  log_warn(for_callers_of_nccl(text));
}

}  // namespace

void watch_real_errors(const char* (*last_error)(ncclComm_t comm)) {
  real_last_error.store(last_error, std::memory_order_release);
}

bool own_error_is_later(const char* real_text) {
  return mine().has_reported && mine().real_text == (real_text != nullptr ? real_text : "");
}

Outcome outcome_of(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return {};
    case Code::kInvalidArgument:
      return invalid_argument(status.text());
    case Code::kInvalidUsage:
    case Code::kMismatch:
      return invalid_usage(status.text());
    case Code::kSystem:
      return {ncclUnhandledCudaError, status.text()};
    case Code::kTimeout:
    case Code::kPeerLost:
      return {ncclRemoteError, status.text()};
    default:
      return {ncclSystemError, status.text()};
  }
}

ncclResult_t report(const Outcome& outcome, bool is_of_communicator) {
  if (outcome.ok() || outcome.code == ncclInProgress) return outcome.code;
  try {
    mine().error = outcome.text;
    mine().is_of_communicator = is_of_communicator;
    note_real_text();
    log_error_of(outcome.text);
    LastOfProcess& last = last_of_process();
    std::lock_guard lock(last.lock);
    last.text = outcome.text;
  } catch (...) {
    // Without memory for the text, only the code is kept.
  }
  return outcome.code;
}

const char* last_error() {
  if (!mine().error.empty()) return hold_text(mine().error);
  LastOfProcess& last = last_of_process();
  std::lock_guard lock(last.lock);
  return hold_text(last.text);
}

const char* last_error_of_no_communicator() {
  return mine().is_of_communicator ? "" : hold_text(mine().error);
}

const char* hold_text(std::string text) {
  if (text.empty()) return "";
  text = for_callers_of_nccl(std::move(text));
  HeldTexts& held = held_texts();
  std::lock_guard lock(held.lock);
  if (const auto found = held.known.find(text); found != held.known.end()) {
    held.texts.splice(held.texts.end(), held.texts, found->second);
    return found->second->c_str();
  }
  const auto added = held.texts.insert(held.texts.end(), std::move(text));
  held.known.emplace(*added, added);
  if (held.texts.size() > kHeldMax) {
    held.known.erase(held.texts.front());
    held.texts.pop_front();
  }
  return added->c_str();
}

Outcome outcome_of_exception(const char* function, std::exception_ptr thrown) noexcept {
  try {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const std::bad_alloc&) {
      return {ncclSystemError, std::string(function) + ": no memory"};
    } catch (const std::exception& error) {
      return {ncclInternalError, std::string(function) + ": " + error.what()};
    } catch (...) {
      return {ncclInternalError, std::string(function) + ": an unknown exception"};
    }
  } catch (...) {
    return {ncclSystemError, {}};
  }
}

}  // namespace weir::nccl
