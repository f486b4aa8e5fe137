// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/enqueue.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/settings.h"
#include "nccl/cuda/driver.h"
#include "nccl/stream/flight.h"
#include "nccl/stream/program.h"
#include "nccl/stream/proxy.h"

namespace weir::nccl {

namespace {

using cuda::Driver;

// The capture that a stream is part of.
struct Capture {
  bool active = false;
  uint64_t number = 0;
  cuda::Graph graph = nullptr;
};

Outcome capture_of(const Driver& driver, const char* function, cuda::Stream stream,
                   Capture* capture) {
  int status = cuda::kCaptureNone;
  cuda::Result result = driver.stream_is_capturing(stream, &status);
  if (result != cuda::kSuccess) {
    return cuda::failed(driver, function, "cuStreamIsCapturing", result);
  }
  if (status == cuda::kCaptureNone) return {};
  if (status == cuda::kCaptureInvalidated) {
    return invalid_usage(fmt::format(
        "{}: the capture of the stream has failed already; end it with cudaStreamEndCapture",
        function));
  }
  if (!driver.can_capture()) {
    return invalid_usage(fmt::format(
        "{}: the stream is captured, but this CUDA has no user objects of graphs (since 11.3)",
        function));
  }
  capture->active = true;
  result = driver.stream_get_capture_info_v2 != nullptr
               ? driver.stream_get_capture_info_v2(stream, &status, &capture->number,
                                                   &capture->graph, nullptr, nullptr)
               : driver.stream_get_capture_info_v3(stream, &status, &capture->number,
                                                   &capture->graph, nullptr, nullptr, nullptr);
  if (result == cuda::kSuccess) return {};
  return cuda::failed(driver, function, "cuStreamGetCaptureInfo", result);
}

bool on_device(const void* driver, const void* pointer) {
  return cuda::only_on_device(*static_cast<const Driver*>(driver), pointer);
}

Outcome make_event(const Driver& driver, const char* function, StreamEvent* event) {
  cuda::Event made = nullptr;
  const cuda::RelaxedCapture relaxed(driver);
  const cuda::Result result = driver.event_create(&made, cuda::kEventDisableTiming);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuEventCreate", result);
  *event = StreamEvent(driver, made);
  return {};
}

Outcome record(const Driver& driver, const char* function, cuda::Stream stream,
               StreamEvent* event) {
  Outcome outcome = make_event(driver, function, event);
  if (!outcome.ok()) return outcome;
  const cuda::Result result = driver.event_record(event->get(), stream);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuEventRecord", result);
  return {};
}

Outcome wait(const Driver& driver, const char* function, cuda::Stream stream,
             const StreamEvent& event) {
  const cuda::Result result = driver.stream_wait_event(stream, event.get(), 0);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuStreamWaitEvent", result);
  return {};
}

// What a graph holds.
struct Retained {
  std::shared_ptr<Proxy> proxy;
  std::shared_ptr<Recording> recording;
};

// Called by CUDA when a graph is gone; may not call CUDA.
void let_go(void* argument) noexcept {
  std::unique_ptr<Retained> it(static_cast<Retained*>(argument));
  it->proxy->release(*it->recording);
}

Outcome start_recording(const Driver& driver, const char* function,
                        const std::shared_ptr<Proxy>& proxy, const Capture& capture,
                        std::shared_ptr<Recording>* recording) {
  *recording = std::make_shared<Recording>(capture.number);
  auto retained = std::make_unique<Retained>(Retained{proxy, *recording});
  cuda::UserObject object = nullptr;
  cuda::Result result =
      driver.user_object_create(&object, retained.get(), let_go, 1, cuda::kNoDestructorSync);
  if (result != cuda::kSuccess) return cuda::failed(driver, function, "cuUserObjectCreate", result);
  retained.release();  // the object's now
  result = driver.graph_retain_user_object(capture.graph, object, 1, cuda::kObjectMove);
  if (result != cuda::kSuccess) {
    (void)driver.user_object_release(object, 1);
    return cuda::failed(driver, function, "cuGraphRetainUserObject", result);
  }
  return {};
}

// Gives the flight staging and a number.
Outcome settle_in(const Driver& driver, const char* function, Bank& bank, Flight& flight) {
  if (bank.staging == nullptr || !bank.staging->holds(flight.mailbox_count, flight.byte_count)) {
    // More than is needed now, so that a row of growing flights does not leave many pieces behind.
    const size_t known = bank.staging == nullptr ? 0 : bank.staging->byte_count;
    const size_t bytes = std::max(flight.byte_count, std::min(2 * known, kStagingMax));
    Outcome outcome = get_staging(driver, function, flight.mailbox_count, bytes, &bank.staging);
    if (!outcome.ok()) return outcome;
    bank.last_number = 0;
  }
  flight.staging = bank.staging;
  flight.number = ++bank.last_number;
  if (flight.number == 0) flight.number = ++bank.last_number;
  return {};
}

std::vector<cuda::Stream> streams_of(const std::vector<Operation>& operations) {
  std::vector<cuda::Stream> streams;
  for (const Operation& it : operations) {
    if (std::find(streams.begin(), streams.end(), it.stream) == streams.end()) {
      streams.push_back(it.stream);
    }
  }
  return streams;
}

// All streams of a flight are captured together, or none is.
Outcome common_capture(const Driver& driver, const char* function,
                       const std::vector<cuda::Stream>& streams, Capture* capture) {
  for (size_t i = 0; i < streams.size(); ++i) {
    Capture it;
    Outcome outcome = capture_of(driver, function, streams[i], &it);
    if (!outcome.ok()) return outcome;
    if (i == 0) *capture = it;
    if (it.active != capture->active || it.number != capture->number) {
      return invalid_usage(fmt::format(
          "{}: the group uses {} streams on one communicator, of which some are captured and "
          "others are not, or into another graph",
          function, streams.size()));
    }
  }
  return {};
}

// From the first call to CUDA that changes a stream. The first stream leads, and the others wait.
Outcome enqueue_flight(const Driver& driver, const char* function,
                       const std::vector<cuda::Stream>& streams, Bank& bank, Flight& flight) {
  const cuda::Stream lead = streams[0];
  for (size_t i = 1; i < streams.size(); ++i) {
    StreamEvent reached;
    Outcome outcome = record(driver, function, streams[i], &reached);
    if (outcome.ok()) outcome = wait(driver, function, lead, reached);
    if (!outcome.ok()) return outcome;
  }
  if (bank.last.get() != nullptr) {
    Outcome outcome = wait(driver, function, lead, bank.last);
    if (!outcome.ok()) return outcome;
  }
  Outcome outcome = enqueue_program(driver, lead, flight);
  if (!outcome.ok()) return outcome;
  StreamEvent end;
  outcome = record(driver, function, lead, &end);
  for (size_t i = 1; i < streams.size() && outcome.ok(); ++i) {
    outcome = wait(driver, function, streams[i], end);
  }
  if (outcome.ok()) bank.last = std::move(end);
  return outcome;
}

// `operations` are of one communicator.
Outcome enqueue_one(const Driver& driver, std::vector<Operation> operations) {
  const char* function = operations[0].function;
  const std::shared_ptr<Comm> comm = operations[0].comm;
  const std::vector<cuda::Stream> streams = streams_of(operations);
  const cuda::ContextScope context(driver, streams[0], operations[0].context);
  Capture capture;
  Outcome outcome = common_capture(driver, function, streams, &capture);
  if (!outcome.ok()) return outcome;
  auto flight = plan_flight(std::move(operations), on_device, &driver);

  const std::shared_ptr<Proxy> proxy = comm->proxy();
  std::lock_guard one_at_a_time(proxy->enqueue_lock());
  proxy->enqueue_begins();
  std::shared_ptr<Recording> recording;
  try {
    if (capture.active) {
      recording = proxy->find_recording(capture.number);
      if (recording == nullptr) {
        outcome = start_recording(driver, function, proxy, capture, &recording);
      }
    }
    Bank& bank = recording != nullptr ? recording->bank : proxy->bank();
    if (outcome.ok()) outcome = settle_in(driver, function, bank, *flight);
    if (outcome.ok()) outcome = enqueue_flight(driver, function, streams, bank, *flight);
    // What a broken stream will not undo: the flight waits there, but nobody is to work for it. (A
    // capture that has failed takes it along.)
    if (!outcome.ok() && flight->rings > 0 && !capture.active) comm->stream_failed(outcome);
  } catch (...) {
    outcome = outcome_of_exception(function, std::current_exception());
    if (flight->rings > 0 && !capture.active) comm->stream_failed(outcome);
  }
  if (flight->rings == 0) flight.reset();
  proxy->enqueue_ends(std::move(flight), recording);
  return outcome;
}

}  // namespace

void find_order(Operation* operation) {
  const bool named = operation->stream != nullptr;
  const Driver* driver = named ? cuda::driver(true) : cuda::known_driver();
  if (driver == nullptr) return;
  if (!named && driver->ctx_get_current(&operation->context) != cuda::kSuccess) {
    operation->context = nullptr;
  }
  operation->in_stream_order = named || operation->context != nullptr;
}

Outcome enqueue(std::vector<Operation> operations) {
  const Driver& driver = *cuda::driver(true);
  Outcome first;
  while (!operations.empty()) {
    const std::shared_ptr<Comm> comm = operations[0].comm;
    const auto others = std::stable_partition(operations.begin(), operations.end(),
                                              [&](const Operation& it) { return it.comm == comm; });
    std::vector<Operation> mine(std::make_move_iterator(operations.begin()),
                                std::make_move_iterator(others));
    operations.erase(operations.begin(), others);
    Outcome outcome = enqueue_one(driver, std::move(mine));
    if (outcome.ok()) continue;
    comm->note_error(outcome.text);
    if (first.ok()) first = std::move(outcome);
  }
  return first;
}

uint64_t wanted_chunk_bytes() {
  if (cuda::driver_in_use() == nullptr) return 0;
  const auto& settings = process_settings();
  return settings.ok() ? static_cast<uint64_t>(settings.value().nccl_chunk_bytes) : 0;
}

bool must_cut(const Operation& operation) {
  const uint64_t chunk_bytes = operation.comm->chunk_bytes();
  return chunk_bytes > 0 && cut(operation, chunk_bytes).slice_count > 1;
}

Outcome run_cut(std::vector<Operation> operations) {
  const auto nowhere = [](const void*, const void*) { return false; };
  const auto flight = plan_flight(std::move(operations), nowhere, nullptr);
  const std::unique_ptr<char[]> memory(new char[flight->byte_count]);
  return run_here(*flight, memory.get());
}

}  // namespace weir::nccl
