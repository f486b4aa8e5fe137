// SPDX-License-Identifier: Apache-2.0
// Collectives on memory of devices: which calls they are, how the ranks agree to start the transport that
// takes them (device_side.h), and the operations from the call until the device is done.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/settings.h"
#include "core/comm/communicator.h"
#include "core/comm/process.h"
#include "core/plugin/registry.h"

namespace weir::comm {

namespace {

// The transport of the real NCCL. One name is enough until there is a second such transport.
constexpr const char* kTransport = "nccl";
// Between two exchanges of how the start goes.
constexpr uint64_t kExchangeIntervalNs = 2'000'000;
// How long an aborted operation may keep its buffers.
constexpr uint64_t kEndPatienceNs = 10'000'000'000;
constexpr timespec kNap{0, 50'000};

bool is_reduction(const engine::Call& call) {
  return call.collective == Collective::kAllReduce || call.collective == Collective::kReduce ||
         call.collective == Collective::kReduceScatter;
}

bool is_callers_mistake(weir_result_t result) {
  return result == WEIR_ERROR_INVALID_ARGUMENT || result == WEIR_ERROR_INVALID_USAGE ||
         result == WEIR_ERROR_UNSUPPORTED;
}

uint32_t kind_of(const Request& request) {
  const bool blocks = !request.device->recv_counts.empty();
  switch (request.call.collective) {
    case Collective::kAllReduce:
      return WEIR_COLLECTIVE_ALL_REDUCE;
    case Collective::kReduce:
      return WEIR_COLLECTIVE_REDUCE;
    case Collective::kBroadcast:
      return WEIR_COLLECTIVE_BROADCAST;
    case Collective::kReduceScatter:
      return blocks ? WEIR_COLLECTIVE_REDUCE_SCATTER_V : WEIR_COLLECTIVE_REDUCE_SCATTER;
    case Collective::kAllGather:
      return blocks ? WEIR_COLLECTIVE_ALL_GATHER_V : WEIR_COLLECTIVE_ALL_GATHER;
    case Collective::kAllToAll:
      return blocks ? WEIR_COLLECTIVE_ALL_TO_ALL_V : WEIR_COLLECTIVE_ALL_TO_ALL;
    case Collective::kGather:
      return WEIR_COLLECTIVE_GATHER;
    case Collective::kScatter:
      return WEIR_COLLECTIVE_SCATTER;
    case Collective::kBarrier:
    case Collective::kSendRecv:
      break;
  }
  return ~0u;
}

int32_t op_of(const engine::Call& call) {
  if (call.scaled) return WEIR_COLLECTIVE_SCALED_SUM;
  if (call.average) return WEIR_AVG;
  return static_cast<int32_t>(call.fold);
}

const uint64_t* data_of(const std::vector<uint64_t>& numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

weir_collective_call_t plugin_call(const Request& request) {
  const DeviceCall& device = *request.device;
  weir_collective_call_t call{};
  call.struct_bytes = sizeof call;
  call.kind = kind_of(request);
  call.type = static_cast<int32_t>(request.call.type);
  call.op = op_of(request.call);
  call.root = request.call.root;
  call.send = request.call.input;
  call.recv = request.call.output;
  call.count = request.call.count;
  call.send_counts = data_of(device.send_counts);
  call.send_displacements = data_of(device.send_displacements);
  call.recv_counts = data_of(device.recv_counts);
  call.recv_displacements = data_of(device.recv_displacements);
  call.scale = request.call.scaled ? request.call.scale : nullptr;
  call.stream = device.stream;
  call.on_stream = device.on_stream ? 1 : 0;
  return call;
}

std::string text_in(const char* text, size_t bytes) {
  std::string copy(text, strnlen(text, bytes));
  for (char& c : copy) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return copy;
}

}  // namespace

void MeetingRecord::say(State the_state, const Status& why) {
  state = the_state;
  code = static_cast<uint32_t>(why.code());
  std::snprintf(text, sizeof text, "%s", why.text().c_str());
}

// ---- Which calls ------------------------------------------------------------------------------------

Result<int> Communicator::device_of(std::span<const void* const> buffers) const {
  if (host_memory_ || (!driver_is_known() && !look_for_driver())) return -1;
  int device = -1;
  bool any_host = false;
  for (const void* buffer : buffers) {
    if (buffer == nullptr) continue;
    const int found = device_of_memory(buffer);
    any_host = any_host || found < 0;
    if (found < 0) continue;
    if (device >= 0 && found != device) {
      return invalid_argument(fmt::format(
          "the buffers of a call on '{}' lie on devices {} and {}: they must lie on one", name_,
          device, found));
    }
    device = found;
  }
  if (device >= 0 && any_host) {
    return invalid_argument(
        fmt::format("of the buffers of a call on '{}' one lies on device {} and one in memory of "
                    "the host: they must "
                    "be of one kind, on every rank",
                    name_, device));
  }
  return device;
}

Result<int> Communicator::device_of(const engine::Call& call) const {
  const Collective c = call.collective;
  if (c == Collective::kBarrier || call.count == 0) return -1;
  const bool at_root = context_.rank == call.root;
  const bool reads = at_root || (c != Collective::kBroadcast && c != Collective::kScatter);
  const bool writes = at_root || (c != Collective::kReduce && c != Collective::kGather);
  const void* const buffers[] = {reads ? call.input : nullptr, writes ? call.output : nullptr};
  return device_of(buffers);
}

void Communicator::lies_on_device(Request& request, int device) {
  request.kind = RequestKind::kDevice;
  request.device = std::make_unique<DeviceCall>();
  request.device->device = device;
  const Rank n = context_.rank_count;
  if (const size_t* counts = request.call.block_counts; counts != nullptr) {
    request.device->recv_counts.assign(counts, counts + n);
  }
  if (const size_t* at = request.call.block_displacements; at != nullptr) {
    request.device->recv_displacements.assign(at, at + n);
  }
  std::lock_guard lock(lock_);
  request.device->on_stream = on_stream_;
  request.device->stream = stream_;
}

Status Communicator::route(Request& request) {
  if (request.known_device >= 0) return route_message(request, request.known_device);
  if (host_memory_ || (!driver_is_known() && !look_for_driver())) return Status();
  if (request.kind == RequestKind::kCollective) {
    const Result<int> device = device_of(request.call);
    if (!device.ok()) return device.status();
    if (device.value() >= 0) lies_on_device(request, device.value());
    return Status();
  }
  if ((request.kind == RequestKind::kSend || request.kind == RequestKind::kRecv) &&
      request.bytes > 0) {
    const int device = device_of_memory(request.call.input);
    if (device >= 0) return route_message(request, device);
  }
  return Status();
}

Status Communicator::set_stream(bool on_stream, void* stream) {
  if (on_stream && host_memory_) {
    return invalid_argument(
        fmt::format("set_stream on '{}', which was made with WEIR_COMM_HOST_MEMORY", name_));
  }
  if (on_stream && !look_for_driver()) {
    return Status(
        Code::kUnsupported,
        fmt::format("set_stream on '{}': this process has no CUDA driver (libcuda.so.1 is not "
                    "loaded)",
                    name_));
  }
  std::lock_guard lock(lock_);
  on_stream_ = on_stream;
  stream_ = stream;
  return Status();
}

Status Communicator::run_on_device(const engine::Call& call, int device) {
  Request* request = acquire_request();
  request->call = call;
  lies_on_device(*request, device);
  const Status status = start(*request);
  if (status.ok()) return finish(request);
  release_request(request);
  return status;
}

Status Communicator::finish(Request* request) {
  if (request->kind == RequestKind::kDevice && request->device->on_stream) {
    settle(*request);
    std::unique_lock lock(lock_);
    if (!request->done.load(std::memory_order_relaxed)) {
      request->device->detached = true;
      lock.unlock();
      watch_requests();  // somebody must see how it ends
      return Status();
    }
  } else {
    (void)wait(*request);
  }
  Status status = request->status;
  release_request(request);
  return status;
}

void Communicator::settle(Request& request) {
  if (request.kind != RequestKind::kDevice || !request.device->on_stream) return;
  for (;;) {
    {
      std::lock_guard lock(lock_);
      const auto settled = [&] {
        return request.done.load(std::memory_order_relaxed) || request.device->enqueued;
      };
      if (settled()) return;
      if (!poll_locked()) check_slowly(request);
      if (settled()) return;
    }
    progress_others(this);
    nanosleep(&kNap, nullptr);
  }
}

// ---- The start --------------------------------------------------------------------------------------

Status Communicator::take_on_device(Request& request) {
  if (deterministic_ && is_reduction(request.call)) {
    return Status(
        Code::kUnsupported,
        fmt::format("{}: the communicator is deterministic, and NCCL promises no order of "
                    "reduction; copy to memory of the host, or use another communicator",
                    describe(request)));
  }
  if (device_ == nullptr) open_device(request.device->device);
  DeviceSide& d = *device_;
  if (d.state == DeviceSide::State::kRefused) return d.refusal;
  if (request.device->device != d.device) {
    return invalid_argument(fmt::format(
        "{}: rank {} of '{}' works on device {}, where its first collective on device memory was; "
        "another device needs another communicator",
        describe(request), context_.rank, name_, d.device));
  }
  request.started = true;
  request.next = nullptr;
  (d.first == nullptr ? d.first : d.last->next) = &request;
  d.last = &request;
  return Status();
}

Status Communicator::find_device_transport(int device) {
  DeviceSide& d = *device_;
  const Result<Settings>& settings = process_settings();
  if (leaves_host_ && settings.ok() && settings.value().tls == "all") {
    return Status(Code::kUnsupported,
                  "WEIR_TLS=all, and NCCL does not encrypt what it sends to other hosts");
  }
  auto found = plugin::find_transport(kTransport);
  if (!found.ok()) return found.status();
  d.transport = found.value();
  if ((d.transport->caps.bits & WEIR_CAP_COLLECTIVES) == 0) {
    return Status(Code::kUnsupported,
                  fmt::format("transport '{}' takes no whole collectives", kTransport));
  }
  d.functions = d.transport->collectives;
  char reason[512] = "";
  weir_result_t result = d.transport->viable(&host_, reason, sizeof reason);
  reason[sizeof reason - 1] = 0;
  if (result != WEIR_OK) return Status(static_cast<Code>(result), reason);
  const Secret secret = secret_.derive("collectives");
  weir_transport_config_t config{};
  config.struct_bytes = sizeof config;
  config.rank = context_.rank;
  config.rank_count = context_.rank_count;
  config.comm_id = secret.public_id();
  config.secret = secret.bytes.data();
  config.secret_bytes = secret.bytes.size();
  result = d.transport->open(&host_, &config, &d.instance);
  if (result != WEIR_OK) {
    d.instance = nullptr;
    return Status(static_cast<Code>(result), transport_error_);
  }
  size_t bytes = sizeof d.mine.introduction;
  result = d.functions->introduce(d.instance, device, d.mine.introduction, &bytes);
  if (result != WEIR_OK) return Status(static_cast<Code>(result), transport_error_);
  d.mine.introduction_bytes = static_cast<uint32_t>(bytes);
  return Status();
}

// Whatever is missing here, the other ranks are told of it in the meeting.
void Communicator::open_device(int device) {
  device_ = std::make_unique<DeviceSide>();
  has_device_.store(true, std::memory_order_release);
  DeviceSide& d = *device_;
  d.device = device;
  d.all.resize(context_.rank_count);
  const Status status = find_device_transport(device);
  d.mine.say(status.ok() ? MeetingRecord::kAble : MeetingRecord::kUnable, status);
  d.meeting.comm = this;
  d.meeting.timeout_ms = timeout_ms_.load();
  d.meeting.call.collective = Collective::kAllGather;
  d.meeting.call.type = DataType::kUint8;
  d.meeting.call.count = sizeof(MeetingRecord);
  d.meeting.call.input = &d.mine;
  d.meeting.call.output = d.all.data();
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  enqueue(d.meeting);
  begin_exchange();
}

void Communicator::begin_exchange() {
  device_->meeting.started = device_->meeting.described = false;
  device_->exchanging = true;
}

void Communicator::exchange_done() {
  DeviceSide& d = *device_;
  d.exchanging = false;
  d.meeting.started = d.meeting.described = false;
  d.exchanged_ns = now_ns();
  const bool first = d.state == DeviceSide::State::kMeeting;
  bool all_joined = true;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const MeetingRecord& it = d.all[p];
    const bool expected =
        first ? it.state == MeetingRecord::kAble
              : it.state == MeetingRecord::kJoining || it.state == MeetingRecord::kJoined;
    all_joined = all_joined && it.state == MeetingRecord::kJoined;
    if (expected && it.introduction_bytes <= sizeof it.introduction) continue;
    refuse_device(Status(Code::kUnsupported,
                         fmt::format("rank {}: {}", p, text_in(it.text, sizeof it.text))));
    return;
  }
  if (first) {
    std::vector<const unsigned char*> texts;
    std::vector<size_t> bytes;
    for (const MeetingRecord& it : d.all) {
      texts.push_back(it.introduction);
      bytes.push_back(it.introduction_bytes);
    }
    d.state = DeviceSide::State::kStarting;
    d.joined = d.functions->join(d.instance, texts.data(), bytes.data());
    d.exchanged_ns = 0;
    return;
  }
  if (!all_joined) return;
  d.state = DeviceSide::State::kReady;
  first_ = d.meeting.next;
  complete(d.meeting, Status());
  if (context_.rank == 0 && planner_->explains()) {
    std::fprintf(stderr, "collectives on device memory of '%s': %u ranks, %s\n", name_.c_str(),
                 context_.rank_count, way_of_device().c_str());
  }
}

std::string Communicator::way_of_device() const {
  const weir_transport_functions_t& transport = *device_->transport;
  char text[512] = {};
  if (transport.describe_peer != nullptr) {
    transport.describe_peer(device_->instance, context_.rank, text, sizeof text);
  }
  return text_in(text, sizeof text - 1);
}

void Communicator::refuse_device(const Status& reason) {
  DeviceSide& d = *device_;
  d.state = DeviceSide::State::kRefused;
  d.refusal = Status(
      Code::kUnsupported,
      fmt::format(
          "collectives on device memory of '{}' are not possible: {}. The communicator goes on "
          "with memory of the host",
          name_, reason.text()));
  if (d.instance != nullptr) (void)d.functions->abort(d.instance);
  if (first_ == &d.meeting) first_ = d.meeting.next;
  if (!d.meeting.done.load(std::memory_order_relaxed)) complete(d.meeting, Status());
  // As often as a communicator finds out; its calls return the rest.
  if (context_.rank == 0) {
    log_warn(d.refusal.text());
    if (planner_->explains()) std::fprintf(stderr, "%s\n", d.refusal.text().c_str());
  }
  while (d.first != nullptr) {
    Request* request = d.first;
    d.first = request->next;
    complete(*request, d.refusal);
  }
  d.last = nullptr;
}

bool Communicator::poll_joining() {
  DeviceSide& d = *device_;
  if (d.joined == WEIR_IN_PROGRESS) {
    d.joined = d.functions->joined(d.instance);
    if (d.joined == WEIR_IN_PROGRESS && now_ns() - d.exchanged_ns < kExchangeIntervalNs)
      return false;
  } else if (d.exchanged_ns != 0 && now_ns() - d.exchanged_ns < kExchangeIntervalNs) {
    return false;
  }
  if (d.joined == WEIR_OK || d.joined == WEIR_IN_PROGRESS) {
    d.mine.say(d.joined == WEIR_OK ? MeetingRecord::kJoined : MeetingRecord::kJoining, Status());
  } else {
    d.mine.say(MeetingRecord::kFailed, Status(static_cast<Code>(d.joined), transport_error_));
  }
  begin_exchange();
  return true;
}

// ---- Operations -------------------------------------------------------------------------------------

bool Communicator::poll_device() {
  DeviceSide& d = *device_;
  if (failed_code_.load(std::memory_order_relaxed) != 0) {
    fail_device(health());
    return d.first == nullptr;
  }
  switch (d.state) {
    case DeviceSide::State::kMeeting:
    case DeviceSide::State::kStarting:
      // The exchange itself could not be planned.
      if (d.meeting.done.load(std::memory_order_relaxed)) {
        refuse_device(d.meeting.status);
        return true;
      }
      return d.state == DeviceSide::State::kStarting && !d.exchanging && poll_joining();
    case DeviceSide::State::kReady:
      return serve_device();
    case DeviceSide::State::kRefused:
    case DeviceSide::State::kEnding:
      break;
  }
  return false;
}

void Communicator::take_out(Request* before, Request& request) {
  DeviceSide& d = *device_;
  (before == nullptr ? d.first : before->next) = request.next;
  if (d.last == &request) d.last = before;
}

void Communicator::device_failed(Request& request, weir_result_t result) {
  const Status status(static_cast<Code>(result),
                      fmt::format("{}: {}", describe(request), transport_error_));
  std::vector<Rank> blamed;
  const Status reason = why_failed(status, request, &blamed);
  fail(reason, blamed);
}

bool Communicator::serve_device() {
  DeviceSide& d = *device_;
  const weir_collective_functions_t& f = *d.functions;
  bool moved = false;
  const Request* waits = nullptr;  // what comes after it on its stream cannot be done
  Request* before = nullptr;
  for (Request* it = d.first; it != nullptr;) {
    DeviceCall& call = *it->device;
    Request* const next = it->next;
    if (!call.taken) {
      if (before != nullptr && !before->device->enqueued) break;
      // Only the oldest that is not taken, whose predecessors all are.
      const weir_collective_call_t described = plugin_call(*it);
      it->op = {};
      const weir_result_t result = f.start(d.instance, &described, &it->op);
      moved = true;
      if (is_callers_mistake(result)) {
        // The same call fails in the same way on every rank, and nothing has been sent.
        take_out(before, *it);
        complete(*it, Status(static_cast<Code>(result),
                             fmt::format("{}: {}", describe(*it), transport_error_)));
        it = next;
        continue;
      }
      if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
        device_failed(*it, result);
        return true;
      }
      call.taken = true;
    }
    if (!call.enqueued) {
      const weir_result_t result = f.enqueued(d.instance, &it->op);
      if (result == WEIR_IN_PROGRESS) break;
      if (result != WEIR_OK) {
        device_failed(*it, result);
        return true;
      }
      call.enqueued = true;
      moved = true;
    }
    const bool behind = waits != nullptr && waits->device->on_stream == call.on_stream &&
                        waits->device->stream == call.stream;
    const weir_result_t result = behind ? WEIR_IN_PROGRESS : f.test(d.instance, &it->op);
    if (result == WEIR_OK) {
      take_out(before, *it);
      complete(*it, Status());
      moved = true;
    } else if (result == WEIR_IN_PROGRESS) {
      waits = it;
      before = it;
    } else {
      device_failed(*it, result);
      return true;
    }
    it = next;
  }
  return moved;
}

void Communicator::watch_device() {
  if (!lock_.try_lock()) return;
  std::lock_guard lock(lock_, std::adopt_lock);
  if (device_ == nullptr || failed_code_.load(std::memory_order_relaxed) != 0) return;
  for (Request* it = device_->first; it != nullptr; it = it->next) {
    if (!it->device->detached) continue;
    check_slowly(*it);
    return;
  }
}

// ---- The end ----------------------------------------------------------------------------------------

void Communicator::fail_device(const Status& status) {
  DeviceSide& d = *device_;
  if (d.state != DeviceSide::State::kEnding) {
    // A communicator without a failure is being destroyed, and only what is under way is given up.
    if (d.first == nullptr && failed_code_.load(std::memory_order_relaxed) == 0) return;
    d.failure = status;
    d.ending_ns = now_ns();
    d.state = DeviceSide::State::kEnding;
  }
  end_device();
}

bool Communicator::end_device() {
  DeviceSide& d = *device_;
  if (d.instance != nullptr && d.functions->abort(d.instance) == WEIR_IN_PROGRESS) {
    if (now_ns() - d.ending_ns < kEndPatienceNs) return false;
    if (d.first != nullptr) {
      log_warn(fmt::format(
          "rank {} of '{}': the aborted operations have not ended within {} s: the device "
          "may still use their buffers",
          context_.rank, name_, kEndPatienceNs / 1'000'000'000));
    }
  }
  while (d.first != nullptr) {
    Request* request = d.first;
    d.first = request->next;
    complete(*request, d.failure);
  }
  d.last = nullptr;
  return true;
}

// The last call: waits, for a bounded time, until the device lets go of the buffers.
void Communicator::close_device() {
  if (device_ == nullptr) return;
  std::lock_guard lock(lock_);
  if (device_->state == DeviceSide::State::kEnding) {
    while (!end_device()) nanosleep(&kNap, nullptr);
  }
  if (device_->instance != nullptr) device_->transport->close(device_->instance);
  device_.reset();
}

}  // namespace weir::comm
