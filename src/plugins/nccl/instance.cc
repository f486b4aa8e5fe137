// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/instance.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace weir::plugins::nccl {

namespace {

constexpr int kVersionOfFloat8 = 22403;  // ncclFloat8e4m3, ncclFloat8e5m2
constexpr int kFinishMs = 5000;
constexpr int kAbortMs = 5000;

// ncclConfig_t as it began, in 2.14: later versions fill in what came after it.
struct FirstConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};
static_assert(sizeof(FirstConfig) == 24);

const char* type_name(int32_t type) {
  return type == WEIR_FLOAT8_E4M3 ? "float8_e4m3" : "float8_e5m2";
}

}  // namespace

Instance::Instance(const weir_host_t* host, const weir_transport_config_t& config,
                   const Library& library, const Driver& driver)
    : host_(host),
      library_(library),
      driver_(driver),
      rank_(config.rank),
      rank_count_(config.rank_count) {}

Instance::~Instance() {
  bool ended = true;
  if (comm_ != nullptr) {
    if (!ending_.has_begun() && ending_.begin(library_, driver_, context_, comm_, false) &&
        !ending_.wait(kFinishMs)) {
      ending_.abort();
    }
    ended = ending_.has_begun() && ending_.wait(kAbortMs);
    if (!ended && host_->log != nullptr) {
      host_->log(host_->context, 1,
                 "nccl: NCCL did not abort a communicator in time; the communicator and the thread "
                 "inside NCCL stay behind");
    }
  }
  // A thread that is left behind uses the context.
  if (context_ == nullptr || !ended) return;
  {
    const DriverScope scope(driver_, context_);
    for (const cuda::DevicePointer copy : copies_) (void)driver_.cuMemFreeAsync(copy, nullptr);
    for (void* event : all_events_) (void)driver_.cuEventDestroy_v2(event);
    if (stream_ != nullptr) (void)driver_.cuStreamDestroy_v2(stream_);
  }
  int device = 0;
  if (driver_.cuDeviceGet(&device, device_) == 0)
    (void)driver_.cuDevicePrimaryCtxRelease_v2(device);
}

weir_result_t Instance::fail(weir_result_t code, const std::string& text) const {
  if (host_->error != nullptr) host_->error(host_->context, ("nccl: " + text).c_str());
  return code;
}

weir_result_t Instance::fail_nccl(const char* function, ncclResult_t result) const {
  const char* what = library_.GetErrorString(result);
  const char* more = library_.GetLastError(nullptr);
  std::string text = std::string(function) + ": " + (what != nullptr ? what : "an error");
  if (more != nullptr && *more != '\0') text += std::string(": ") + more;
  // If NCCL refuses a call in spite of our checks, the peers cannot distinguish that from other
  // failures.
  const weir_result_t code =
      result == ncclRemoteError ? WEIR_ERROR_PEER_LOST
      : result == ncclInternalError || result == ncclInvalidArgument || result == ncclInvalidUsage
          ? WEIR_ERROR_INTERNAL
          : WEIR_ERROR_SYSTEM;
  return fail(code, text);
}

weir_result_t Instance::fail_cuda(const char* function, int error) const {
  return fail(WEIR_ERROR_SYSTEM, std::string(function) + ": " + name_of(driver_, error));
}

weir_result_t Instance::introduce(int device, unsigned char* text, size_t* bytes) {
  if (*bytes < sizeof(Introduction)) {
    return fail(WEIR_ERROR_INVALID_ARGUMENT, "the buffer is too small for an introduction");
  }
  // A caller that has device memory has started the driver; a runtime may have done so for its own
  // threads only.
  int found = 0;
  int error = driver_.cuInit(0);
  if (error == 0 && device >= 0) error = driver_.cuDeviceGet(&found, device);
  if (device < 0 || error != 0) {
    return fail(WEIR_ERROR_UNSUPPORTED, "there is no device " + std::to_string(device) +
                                            (error != 0 ? ": " + name_of(driver_, error) : ""));
  }
  Introduction self;
  self.version = library_.version;
  self.device = device;
  error = driver_.cuDeviceGetUuid_v2(&self.uuid, found);
  if (error == 0 && context_ == nullptr) error = driver_.cuDevicePrimaryCtxRetain(&context_, found);
  if (error != 0) {
    return fail(WEIR_ERROR_UNSUPPORTED,
                "device " + std::to_string(device) + ": " + name_of(driver_, error));
  }
  device_ = device;
  if (gethostname(self.host, sizeof self.host - 1) != 0) self.host[0] = '\0';
  if (rank_ == 0) {
    const DriverScope scope(driver_, context_);
    const ncclResult_t result = library_.GetUniqueId(&self.id);
    if (result != ncclSuccess) return fail_nccl("ncclGetUniqueId", result);
    self.id_bytes = sizeof self.id;
  }
  memcpy(text, &self, sizeof self);
  *bytes = sizeof self;
  return WEIR_OK;
}

weir_result_t Instance::join(const unsigned char* const* texts, const size_t* bytes) {
  if (context_ == nullptr || comm_ != nullptr) {
    return fail(WEIR_ERROR_INVALID_USAGE, "join must be called once, after introduce");
  }
  std::vector<Introduction> all(rank_count_);
  for (uint32_t p = 0; p < rank_count_; ++p) {
    if (bytes[p] == sizeof(Introduction)) memcpy(&all[p], texts[p], sizeof(Introduction));
    all[p].host[sizeof all[p].host - 1] = '\0';
    if (bytes[p] != sizeof(Introduction) || all[p].mark != Introduction::kMark ||
        (p == 0 && all[p].id_bytes != sizeof(ncclUniqueId))) {
      return fail(WEIR_ERROR_REFUSED,
                  "the introduction of rank " + std::to_string(p) +
                      " cannot be read; do all ranks run the same version of Weir?");
    }
    if (all[p].version != all[0].version) {
      return fail(WEIR_ERROR_UNSUPPORTED, "rank 0 has NCCL " + version_text(all[0].version) +
                                              ", rank " + std::to_string(p) + " has " +
                                              version_text(all[p].version) +
                                              ": install the same version for all ranks");
    }
    for (uint32_t q = 0; q < p; ++q) {
      if (memcmp(&all[p].uuid, &all[q].uuid, sizeof all[p].uuid) != 0) continue;
      return fail(WEIR_ERROR_UNSUPPORTED,
                  "ranks " + std::to_string(q) + " and " + std::to_string(p) + " share device " +
                      std::to_string(all[p].device) + " of '" + all[p].host +
                      "': NCCL needs a device of its own for each rank");
    }
  }
  FirstConfig first{sizeof(FirstConfig), NCCL_API_MAGIC, 21403, 0};
  ncclConfig_t config{};
  memcpy(static_cast<void*>(&config), &first, sizeof first);
  const DriverScope scope(driver_, context_);
  const ncclResult_t result = library_.CommInitRankConfig(
      &comm_, static_cast<int>(rank_count_), all[0].id, static_cast<int>(rank_), &config);
  if (result != ncclSuccess && result != ncclInProgress) {
    comm_ = nullptr;  // there is none to end
    return fail_nccl("ncclCommInitRankConfig", result);
  }
  return joined();
}

weir_result_t Instance::joined() { return state("ncclCommInitRankConfig"); }

weir_result_t Instance::state(const char* what) const {
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = library_.CommGetAsyncError(comm_, &result);
  if (asked != ncclSuccess) return fail_nccl("ncclCommGetAsyncError", asked);
  if (result == ncclInProgress) return WEIR_IN_PROGRESS;
  return result == ncclSuccess ? WEIR_OK : fail_nccl(what, result);
}

weir_result_t Instance::check(const weir_collective_call_t& call) const {
  if (call.type >= WEIR_FLOAT8_E4M3 && library_.version < kVersionOfFloat8) {
    return fail(WEIR_ERROR_UNSUPPORTED, std::string(type_name(call.type)) + " came with NCCL " +
                                            version_text(kVersionOfFloat8) + ", this one is " +
                                            version_text(library_.version));
  }
  if (call.kind == WEIR_COLLECTIVE_ALL_TO_ALL_V && call.send == call.recv && call.send != nullptr) {
    return fail(WEIR_ERROR_UNSUPPORTED,
                "all_to_all_v in place: NCCL needs a receive buffer apart from the send buffer");
  }
  return WEIR_OK;
}

weir_result_t Instance::copy_of_send(const weir_collective_call_t& call, void* stream,
                                     cuda::DevicePointer* copy) {
  int capturing = cuda::kCaptureNone;
  if (driver_.cuStreamIsCapturing(stream, &capturing) == 0 && capturing != cuda::kCaptureNone) {
    return fail(WEIR_ERROR_UNSUPPORTED,
                "all_to_all in place while the stream is captured: NCCL needs a receive buffer "
                "apart from the send buffer, so give it one");
  }
  const size_t bytes = call.count * element_bytes(call.type) * rank_count_;
  copies_.reserve(copies_.size() + 1);
  if (const int error = driver_.cuMemAllocAsync(copy, bytes, stream); error != 0) {
    return fail_cuda("cuMemAllocAsync for an all_to_all in place", error);
  }
  copies_.push_back(*copy);
  const int error =
      driver_.cuMemcpyAsync(*copy, reinterpret_cast<uintptr_t>(call.send), bytes, stream);
  if (error == 0) return WEIR_OK;
  free_copy(*copy, stream);
  return fail_cuda("cuMemcpyAsync", error);
}

void Instance::free_copy(cuda::DevicePointer copy, void* stream) {
  copies_.erase(std::find(copies_.begin(), copies_.end(), copy));
  (void)driver_.cuMemFreeAsync(copy, stream);
}

weir_result_t Instance::start(const weir_collective_call_t& call, weir_transport_op_t* op) {
  if (call.struct_bytes < sizeof call) {
    return fail(WEIR_ERROR_INVALID_ARGUMENT, "the call is of another version");
  }
  if (comm_ == nullptr || ending_.has_begun()) {
    return fail(WEIR_ERROR_INVALID_USAGE, "start before join or after abort");
  }
  if (const weir_result_t checked = check(call); checked != WEIR_OK) return checked;
  const DriverScope scope(driver_, context_);
  void* stream = call.stream;
  if (call.on_stream == 0) {
    if (stream_ == nullptr) {
      const int error = driver_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking);
      if (error != 0) return fail_cuda("cuStreamCreate", error);
    }
    stream = stream_;
  }
  cuda::DevicePointer copy = 0;
  weir_collective_call_t apart = call;
  if (call.kind == WEIR_COLLECTIVE_ALL_TO_ALL && call.send == call.recv && call.count > 0) {
    if (const weir_result_t copied = copy_of_send(call, stream, &copy); copied != WEIR_OK) {
      return copied;
    }
    apart.send = reinterpret_cast<const void*>(static_cast<uintptr_t>(copy));
  }
  const ncclResult_t result = enqueue(apart, stream);
  if (result != ncclSuccess && result != ncclInProgress) {
    if (copy != 0) free_copy(copy, stream);
    return fail_nccl("a collective", result);
  }
  op->word[kPhase] = kStarting;
  op->word[kCopy] = copy;
  op->word[kStream] = reinterpret_cast<uint64_t>(stream);
  op->word[kEvent] = 0;
  return WEIR_IN_PROGRESS;
}

weir_result_t Instance::enqueued(weir_transport_op_t* op) {
  if (op->word[kPhase] != kStarting) return WEIR_OK;
  const DriverScope scope(driver_, context_);
  const weir_result_t now = state("a collective");
  if (now != WEIR_OK) return now;
  void* const stream = reinterpret_cast<void*>(op->word[kStream]);
  if (op->word[kCopy] != 0) free_copy(std::exchange(op->word[kCopy], 0), stream);
  int capturing = cuda::kCaptureNone;
  if (driver_.cuStreamIsCapturing(stream, &capturing) == 0 && capturing != cuda::kCaptureNone) {
    op->word[kPhase] = kCaptured;
    return WEIR_OK;
  }
  void* event = nullptr;
  if (free_events_.empty()) {
    const int error = driver_.cuEventCreate(&event, cuda::kEventDisableTiming);
    if (error != 0) return fail_cuda("cuEventCreate", error);
    all_events_.push_back(event);
    free_events_.reserve(all_events_.size());
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  const int error = driver_.cuEventRecord(event, stream);
  if (error != 0) return fail_cuda("cuEventRecord", error);
  op->word[kEvent] = reinterpret_cast<uint64_t>(event);
  op->word[kPhase] = kEnqueued;
  return WEIR_OK;
}

weir_result_t Instance::test(weir_transport_op_t* op) {
  if (op->word[kPhase] == kCaptured) return WEIR_OK;
  if (op->word[kPhase] != kEnqueued) {
    const weir_result_t now = enqueued(op);
    if (now != WEIR_OK || op->word[kPhase] == kCaptured) return now;
  }
  void* const event = reinterpret_cast<void*>(op->word[kEvent]);
  int error = 0;
  {
    const DriverScope scope(driver_, context_);
    error = driver_.cuEventQuery(event);
  }
  if (error == 0) {
    free_events_.push_back(event);
    return WEIR_OK;
  }
  if (error != cuda::kErrorNotReady) return fail_cuda("a collective", error);
  const weir_result_t now = state("a collective");
  return now == WEIR_OK ? WEIR_IN_PROGRESS : now;
}

weir_result_t Instance::abort() {
  if (comm_ == nullptr) return WEIR_OK;
  if (!ending_.has_begun() && !ending_.begin(library_, driver_, context_, comm_, true)) {
    return WEIR_IN_PROGRESS;
  }
  return ending_.done() ? WEIR_OK : WEIR_IN_PROGRESS;
}

}  // namespace weir::plugins::nccl
