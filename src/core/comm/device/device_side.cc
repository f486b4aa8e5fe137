// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/device_side.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/settings.h"
#include "core/comm/device/nearby.h"
#include "core/comm/requests/request_text.h"
#include "core/plugin/registry.h"

namespace weir::comm {

namespace {

// The transport of the real NCCL. One name is enough until there is a second such transport.
constexpr const char* kTransport = "nccl";
// Between two exchanges of the progress of the start.
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

// ---- The start ----------------------------------------------------------------------------------

std::string DeviceSide::why_no_streams() const {
  // Then such a call is of another kind.
  const std::string& reason = stream_refusal_.empty()
                                  ? "calls with a count for each rank do not go that way"
                                  : stream_refusal_;
  return fmt::format("; directly between the devices it is not possible: {}", reason);
}

Status DeviceSide::start(Request& request) {
  has_calls_.store(true, std::memory_order_release);
  if (request.is_message()) return start_message(request);
  const int device = request.device->device;
  if (!DeviceStreams::can_take(request.call) || !stream_refusal_.empty()) {
    return start_with_transport(request);
  }
  if (stream_step_ == StreamStep::kNone) open_streams(device);
  if (device != streams_.device()) return other_device(request, streams_.device());
  streams_.start(request);
  return Status();
}

Status DeviceSide::other_device(const Request& request, int device) const {
  return invalid_argument(
      fmt::format("{}: rank {} of '{}' uses device {}, which was current when the communicator was "
                  "made, or on which its first collective on device memory was; create another "
                  "communicator for another device",
                  describe(request, state_), state_.rank(), state_.name, device));
}

void DeviceSide::prepare(int device) {
  prepares_ = true;
  open_streams(device);
}

Request* DeviceSide::deciding() {
  return stream_meeting_ != nullptr ? &stream_meeting_->request() : nullptr;
}

bool DeviceSide::takes_message(std::string* why_not) const {
  switch (stream_step_) {
    case StreamStep::kNone:
      *why_not =
          prepare_refusal_.empty()
              ? "not all ranks had a CUDA context when the communicator was made, and there was no "
                "collective on device memory yet: make another one (weir_comm_split) when they do"
              : prepare_refusal_;
      return false;
    case StreamStep::kMeeting:
    case StreamStep::kVoting:
      return true;
    case StreamStep::kDecided:
      break;
  }
  *why_not = transport_has_messages_ ? "they are left to the transport" : stream_refusal_;
  return why_not->empty();
}

StreamMemory* DeviceSide::stream_memory(std::string* why_not) const {
  if (streams_.is_ready()) return streams_.parts().memory.get();
  *why_not = stream_refusal_.empty() ? prepare_refusal_ : stream_refusal_;
  return nullptr;
}

Status DeviceSide::start_message(Request& request) {
  if (request.device->device != streams_.device()) return other_device(request, streams_.device());
  messages_.start(request);
  return Status();
}

// That were called before it was decided.
void DeviceSide::refuse_messages() {
  std::string why_not;
  if (takes_message(&why_not)) return;
  for (Request* request : messages_.take_pending()) {
    requests_.complete(
        *request,
        Status(Code::kUnsupported,
               fmt::format("{}: its buffer lies on device {}, and messages do not go "
                           "directly between the devices: {}",
                           describe(*request, state_), request->device->device, why_not)));
  }
}

void DeviceSide::enqueue_pending() {
  if (!streams_.has_pending() && !messages_.has_pending()) return;
  // A thread that is doing so already does it for this one, or this one comes again.
  const std::unique_lock order(enqueue_lock_, std::try_to_lock);
  if (!order.owns_lock()) return;
  // With the communicator's lock.
  const auto collectives = [&](const CallGroup& group) { return streams_.has_pending_of(group); };
  messages_.enqueue_pending(collectives);
  streams_.enqueue_pending([&](const CallGroup& group) { return messages_.has_pending_of(group); });
  messages_.enqueue_ends(collectives);
}

// ---- From device to device ----------------------------------------------------------------------

// If this rank cannot take part, the other ranks learn of it in the meeting.
void DeviceSide::open_streams(int device) {
  is_open_.store(true, std::memory_order_release);
  stream_meeting_ = std::make_unique<Meeting>(state_, requests_, queue_);
  MeetingRecord& mine = stream_meeting_->mine;
  const bool has_messages = (state_.context.transport->caps.bits & WEIR_CAP_DEVICE_MEMORY) != 0;
  mine.transport_has_messages = has_messages ? 1 : 0;
  const Status status = streams_.open(device, network_);
  mine.say(status.ok() ? MeetingRecord::kAble : MeetingRecord::kUnable, status);
  if (status.ok()) {
    static_assert(sizeof(StreamSetup::Entry) <= sizeof mine.introduction);
    std::memcpy(mine.introduction, &streams_.entry(), sizeof(StreamSetup::Entry));
    mine.introduction_bytes = sizeof(StreamSetup::Entry);
  }
  stream_step_ = StreamStep::kMeeting;
  stream_meeting_->enqueue();
}

void DeviceSide::poll_streams_meeting() {
  if (const Status failed = stream_meeting_->failure(); !failed.ok()) {
    refuse_streams(failed.text());
  } else if (stream_meeting_->has_exchanged()) {
    stream_exchange_done();
  }
}

void DeviceSide::stream_exchange_done() {
  Meeting& meeting = *stream_meeting_;
  const bool votes = stream_step_ == StreamStep::kVoting;
  const uint32_t expected = votes ? MeetingRecord::kJoined : MeetingRecord::kAble;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    const MeetingRecord& it = meeting.all[p];
    if (it.state == expected && it.introduction_bytes == sizeof(StreamSetup::Entry)) continue;
    return refuse_streams(fmt::format("rank {}: {}", p, it.why()));
  }
  if (!votes) {
    std::vector<StreamSetup::Entry> entries(state_.rank_count());
    for (Rank p = 0; p < state_.rank_count(); ++p) {
      std::memcpy(static_cast<void*>(&entries[p]), meeting.all[p].introduction, sizeof entries[p]);
    }
    const Status status = streams_.connect(entries);
    meeting.mine.say(status.ok() ? MeetingRecord::kJoined : MeetingRecord::kFailed, status);
    stream_step_ = StreamStep::kVoting;
    return meeting.exchange();
  }
  for (const MeetingRecord& it : meeting.all) {
    transport_has_messages_ = transport_has_messages_ || it.transport_has_messages != 0;
  }
  stream_step_ = StreamStep::kDecided;
  prepares_ = false;
  streams_.become_ready(owner_, state_.rank() == 0 && queue_.planner()->explains());
  messages_.become_ready(streams_.parts());
  refuse_messages();
  meeting.end();
  stream_meeting_.reset();
  if (state_.rank() == 0 && queue_.planner()->explains()) {
    std::fprintf(stderr,
                 "operations on device memory of '%s': %u ranks, directly between the devices\n",
                 state_.name.c_str(), state_.rank_count());
  }
}

// All ranks do, at the same place in the queue: the transport's meeting is there, too, wherever it
// may stand by now.
void DeviceSide::refuse_streams(const std::string& reason) {
  streams_.give_back();
  if (std::exchange(prepares_, false)) {
    // The first collective tries again, and tells the reason.
    prepare_refusal_ = reason;
    stream_step_ = StreamStep::kNone;
    if (stream_meeting_->failure().ok()) stream_meeting_->end();
    return stream_meeting_.reset();
  }
  stream_step_ = StreamStep::kDecided;
  stream_refusal_ = reason;
  refuse_messages();
  if (state_.rank() == 0) {
    const std::string line = fmt::format(
        "collectives on device memory of '{}' do not go directly between the devices: {}",
        state_.name, reason);
    log_info(line);
    if (queue_.planner()->explains()) std::fprintf(stderr, "%s\n", line.c_str());
  }
  const std::vector<Request*> pending = streams_.take_pending();
  // One whose exchange could not be planned is over.
  if (!stream_meeting_->failure().ok()) stream_meeting_.reset();
  if (opened_ == nullptr) {
    open(streams_.device(), std::move(stream_meeting_));
  } else if (stream_meeting_ == nullptr) {
    return start_all_with_transport(pending);
  } else if (opened_->step == Step::kMeeting) {
    opened_->meeting->end();
    stream_meeting_->mine = opened_->meeting->mine;
    opened_->meeting = std::move(stream_meeting_);
    opened_->meeting->exchange();
  } else {
    stream_meeting_->end();
    stream_meeting_.reset();
  }
  start_all_with_transport(pending);
}

void DeviceSide::start_all_with_transport(const std::vector<Request*>& pending) {
  for (Request* request : pending) {
    const Status status = start_with_transport(*request);
    if (!status.ok()) requests_.complete(*request, status);
  }
}

// ---- The start of the transport -----------------------------------------------------------------

Status DeviceSide::start_with_transport(Request& request) {
  if (state_.deterministic && is_reduction(request.call)) {
    return Status(
        Code::kUnsupported,
        fmt::format(
            "{}: the communicator is deterministic, and NCCL guarantees no order of reduction; "
            "copy the data to host memory, or use a communicator that is not deterministic{}",
            describe(request, state_), why_no_streams()));
  }
  if (opened_ == nullptr) open(request.device->device, nullptr);
  Opened& d = *opened_;
  if (d.step == Step::kRefused) return d.refusal;
  if (request.device->device != d.device) return other_device(request, d.device);
  request.started = true;
  request.next = nullptr;
  (d.first == nullptr ? d.first : d.last->next) = &request;
  d.last = &request;
  return Status();
}

Status DeviceSide::find_transport(int device, MeetingRecord* mine) {
  Opened& d = *opened_;
  const Result<Settings>& settings = process_settings();
  if (state_.leaves_host && settings.ok() && settings.value().tls == "all") {
    return Status(Code::kUnsupported,
                  "WEIR_TLS=all, and NCCL does not encrypt what it sends to other hosts");
  }
  auto found = plugin::find_transport(kTransport);
  if (!found.ok()) return found.status();
  d.transport = found.value();
  if ((d.transport->caps.bits & WEIR_CAP_COLLECTIVES) == 0) {
    return Status(Code::kUnsupported,
                  fmt::format("transport '{}' performs no collectives", kTransport));
  }
  d.functions = d.transport->collectives;
  char reason[512] = "";
  weir_result_t result =
      d.transport->viable(d.transport->context, &state_.host, reason, sizeof reason);
  reason[sizeof reason - 1] = 0;
  if (result != WEIR_OK) return Status(static_cast<Code>(result), reason);
  const Secret secret = state_.secret.derive("collectives");
  weir_transport_config_t config{};
  config.struct_bytes = sizeof config;
  config.rank = state_.rank();
  config.rank_count = state_.rank_count();
  config.comm_id = secret.public_id();
  config.secret = secret.bytes.data();
  config.secret_bytes = secret.bytes.size();
  const Nearby nearby = look_nearby(false);
  nearby.hint(&config);
  config.device = device;
  result = d.transport->open(d.transport->context, &state_.host, &config, &d.instance);
  if (result != WEIR_OK) {
    d.instance = nullptr;
    return Status(static_cast<Code>(result), state_.transport_error);
  }
  size_t bytes = sizeof mine->introduction;
  result = d.functions->introduce(d.instance, device, mine->introduction, &bytes);
  if (result != WEIR_OK) return Status(static_cast<Code>(result), state_.transport_error);
  mine->introduction_bytes = static_cast<uint32_t>(bytes);
  return Status();
}

// If anything is missing on this rank, the other ranks learn of it in the meeting.
void DeviceSide::open(int device, std::unique_ptr<Meeting> meeting) {
  opened_ = std::make_unique<Opened>();
  is_open_.store(true, std::memory_order_release);
  Opened& d = *opened_;
  d.device = device;
  const bool is_under_way = meeting != nullptr;
  d.meeting =
      is_under_way ? std::move(meeting) : std::make_unique<Meeting>(state_, requests_, queue_);
  MeetingRecord mine;
  const Status status = find_transport(device, &mine);
  mine.say(status.ok() ? MeetingRecord::kAble : MeetingRecord::kUnable, status);
  d.meeting->mine = mine;
  if (is_under_way) {
    d.meeting->exchange();
  } else {
    d.meeting->enqueue();
  }
}

void DeviceSide::exchange_done() {
  Opened& d = *opened_;
  const bool first = d.step == Step::kMeeting;
  bool all_joined = true;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    const MeetingRecord& it = d.meeting->all[p];
    const bool expected =
        first ? it.state == MeetingRecord::kAble
              : it.state == MeetingRecord::kJoining || it.state == MeetingRecord::kJoined;
    all_joined = all_joined && it.state == MeetingRecord::kJoined;
    if (expected && it.introduction_bytes <= sizeof it.introduction) continue;
    refuse(Status(Code::kUnsupported, fmt::format("rank {}: {}", p, it.why())));
    return;
  }
  if (first) {
    std::vector<const unsigned char*> texts;
    std::vector<size_t> bytes;
    for (const MeetingRecord& it : d.meeting->all) {
      texts.push_back(it.introduction);
      bytes.push_back(it.introduction_bytes);
    }
    d.step = Step::kStarting;
    d.joined = d.functions->join(d.instance, texts.data(), bytes.data());
    d.tells_at_once = true;
    return;
  }
  if (!all_joined) return;
  d.step = Step::kReady;
  d.meeting->end();
  if (state_.rank() == 0 && queue_.planner()->explains()) {
    std::fprintf(stderr, "collectives on device memory of '%s': %u ranks, %s\n",
                 state_.name.c_str(), state_.rank_count(), way().c_str());
  }
}

std::string DeviceSide::way() const {
  const weir_transport_functions_t& transport = *opened_->transport;
  char text[512] = {};
  if (transport.describe_peer != nullptr) {
    transport.describe_peer(opened_->instance, state_.rank(), text, sizeof text);
  }
  return text_in(text, sizeof text - 1);
}

void DeviceSide::refuse(const Status& reason) {
  Opened& d = *opened_;
  d.step = Step::kRefused;
  d.refusal = Status(Code::kUnsupported,
                     fmt::format("collectives on device memory of '{}' are not possible: {}{}. The "
                                 "communicator continues to work on host memory",
                                 state_.name, reason.text(), why_no_streams()));
  if (d.instance != nullptr) (void)d.functions->abort(d.instance);
  d.meeting->end();
  // Logged once per communicator; its calls return the rest.
  if (state_.rank() == 0) {
    log_warn(d.refusal.text());
    if (queue_.planner()->explains()) std::fprintf(stderr, "%s\n", d.refusal.text().c_str());
  }
  complete_all(d.refusal);
}

bool DeviceSide::poll_joining() {
  Opened& d = *opened_;
  const bool was_under_way = d.joined == WEIR_IN_PROGRESS;
  if (was_under_way) d.joined = d.functions->joined(d.instance);
  const bool is_early = now_ns() - d.meeting->exchanged_ns() < kExchangeIntervalNs;
  const bool has_ended = was_under_way && d.joined != WEIR_IN_PROGRESS;
  if (is_early && !has_ended && !std::exchange(d.tells_at_once, false)) return false;
  if (d.joined == WEIR_OK || d.joined == WEIR_IN_PROGRESS) {
    d.meeting->mine.say(d.joined == WEIR_OK ? MeetingRecord::kJoined : MeetingRecord::kJoining,
                        Status());
  } else {
    d.meeting->mine.say(MeetingRecord::kFailed,
                        Status(static_cast<Code>(d.joined), state_.transport_error));
  }
  d.meeting->exchange();
  return true;
}

// ---- Operations ---------------------------------------------------------------------------------

bool DeviceSide::poll(OperationFailure* failure) {
  if (state_.failure.is_set()) {
    fail_all(state_.failure.status());
    return is_empty() && messages_.is_empty();
  }
  if (stream_meeting_ != nullptr) poll_streams_meeting();
  bool moved = streams_.poll();
  moved = messages_.poll() || moved;
  return (opened_ != nullptr && poll_transport(failure)) || moved;
}

bool DeviceSide::poll_transport(OperationFailure* failure) {
  Opened& d = *opened_;
  switch (d.step) {
    case Step::kMeeting:
    case Step::kStarting:
      // The exchange itself could not be planned.
      if (const Status failed = d.meeting->failure(); !failed.ok()) {
        refuse(failed);
        return true;
      }
      if (d.meeting->has_exchanged()) {
        exchange_done();
        return true;
      }
      return d.step == Step::kStarting && !d.meeting->is_exchanging() && poll_joining();
    case Step::kReady:
      return serve(failure);
    case Step::kRefused:
    case Step::kEnding:
      break;
  }
  return false;
}

void DeviceSide::take_out(Request* before, Request& request) {
  Opened& d = *opened_;
  (before == nullptr ? d.first : before->next) = request.next;
  if (d.last == &request) d.last = before;
}

void DeviceSide::complete_all(const Status& status) {
  Opened& d = *opened_;
  while (d.first != nullptr) {
    Request* request = d.first;
    d.first = request->next;
    requests_.complete(*request, status);
  }
  d.last = nullptr;
}

void DeviceSide::operation_failed(const Request& request, weir_result_t result,
                                  OperationFailure* failure) const {
  failure->status =
      Status(static_cast<Code>(result),
             fmt::format("{}: {}", describe(request, state_), state_.transport_error));
  failure->request = &request;
}

bool DeviceSide::serve(OperationFailure* failure) {
  Opened& d = *opened_;
  const weir_collective_functions_t& f = *d.functions;
  bool moved = false;
  const Request* waits = nullptr;  // later operations on its stream cannot be done
  Request* before = nullptr;
  for (Request* it = d.first; it != nullptr;) {
    DeviceCall& call = *it->device;
    Request* const next = it->next;
    if (!call.taken) {
      if (before != nullptr && !before->device->enqueued) break;
      // Only the oldest operation that was not taken; all earlier ones were.
      const weir_collective_call_t described = plugin_call(*it);
      it->op = {};
      const weir_result_t result = f.start(d.instance, &described, &it->op);
      moved = true;
      if (is_callers_mistake(result)) {
        // The same call fails in the same way on every rank, and nothing has been sent.
        take_out(before, *it);
        requests_.complete(
            *it, Status(static_cast<Code>(result),
                        fmt::format("{}: {}", describe(*it, state_), state_.transport_error)));
        it = next;
        continue;
      }
      if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
        operation_failed(*it, result, failure);
        return true;
      }
      call.taken = true;
      explain_transport(*it);
    }
    if (!call.enqueued) {
      const weir_result_t result = f.enqueued(d.instance, &it->op);
      if (result == WEIR_IN_PROGRESS) break;
      if (result != WEIR_OK) {
        operation_failed(*it, result, failure);
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
      requests_.complete(*it, Status());
      moved = true;
    } else if (result == WEIR_IN_PROGRESS) {
      waits = it;
      before = it;
    } else {
      operation_failed(*it, result, failure);
      return true;
    }
    it = next;
  }
  return moved;
}

// Once for each kind of call.
void DeviceSide::explain_transport(const Request& request) {
  constexpr size_t kLinesMax = 256;
  if (state_.rank() != 0 || !queue_.planner()->explains()) return;
  const std::string line =
      fmt::format("{} on devices of '{}': by transport '{}'{}", engine::describe(request.call),
                  state_.name, kTransport, why_no_streams());
  if (explained_.size() < kLinesMax && explained_.insert(line).second) {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

Request* DeviceSide::first_detached() const {
  if (Request* it = messages_.first_detached(); it != nullptr) return it;
  if (Request* it = streams_.first_detached(); it != nullptr || opened_ == nullptr) return it;
  for (Request* it = opened_->first; it != nullptr; it = it->next) {
    if (it->device->detached) return it;
  }
  return nullptr;
}

// ---- The end ------------------------------------------------------------------------------------

void DeviceSide::fail_all(const Status& status) {
  end_streams(status);
  if (opened_ == nullptr) return;
  Opened& d = *opened_;
  if (d.step != Step::kEnding) {
    // A communicator without a failure is being destroyed, and only operations that are under way
    // are given up.
    if (d.first == nullptr && !state_.failure.is_set()) return;
    d.failure = status;
    d.ending_ns = now_ns();
    d.step = Step::kEnding;
  }
  end();
}

bool DeviceSide::end_streams(const Status& status) {
  if (streams_.is_empty() && messages_.is_empty()) return true;
  if (streams_ending_ns_ == 0) streams_ending_ns_ = now_ns();
  const bool at_once = now_ns() - streams_ending_ns_ >= kEndPatienceNs;
  const bool messages_ended = messages_.fail_all(status, at_once);
  return streams_.fail_all(status, at_once) && messages_ended;
}

bool DeviceSide::end() {
  Opened& d = *opened_;
  if (d.instance != nullptr && d.functions->abort(d.instance) == WEIR_IN_PROGRESS) {
    if (now_ns() - d.ending_ns < kEndPatienceNs) return false;
    if (d.first != nullptr) {
      log_warn(fmt::format(
          "rank {} of '{}': the aborted operations have not ended within {} s: the device "
          "may still use their buffers",
          state_.rank(), state_.name, kEndPatienceNs / 1'000'000'000));
    }
  }
  complete_all(d.failure);
  return true;
}

void DeviceSide::close() {
  const Status status = state_.failure.is_set()
                            ? state_.failure.status()
                            : Status(Code::kAborted, "the communicator was destroyed");
  messages_.tell_ends();
  while (!end_streams(status)) nanosleep(&kNap, nullptr);
  if (opened_ == nullptr) return;
  if (opened_->step == Step::kEnding) {
    while (!end()) nanosleep(&kNap, nullptr);
  }
  if (opened_->instance != nullptr) opened_->transport->close(opened_->instance);
  opened_.reset();
}

}  // namespace weir::comm
