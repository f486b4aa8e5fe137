// SPDX-License-Identifier: Apache-2.0
// hook_fault: makes a transport misbehave as WEIR_FAULT says, in the same way every time. See
// plan.h for the keys. An operation that is held back holds back what is posted after it on the
// same (peer, lane, direction): except for reorder_at, the order of messages never changes. Puts
// count as sends, gets as receives; they have no order, so none holds back another. Messages
// received into memory of a device are not corrupted: the host cannot access it.
#include <inttypes.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "plugins/hook/hook.h"
#include "plugins/hook/in_flight.h"
#include "plugins/hook_fault/plan.h"

namespace weir::plugins::hook_fault {
namespace {

constexpr uint64_t kNever = UINT64_MAX;
constexpr int kHost = -1;

struct Operation {
  bool sending;
  bool corrupt;
  bool duplicate;
  uint32_t peer;
  uint32_t lane;
  void* data;
  uint64_t bytes;
  uint64_t due_ns;
  bool one_sided;
  hook::RemoteRequest request;  // of a one-sided one
  int device = kHost;           // on which the buffer lies
};

enum class Stage { kHeld, kPosted, kFinished };

struct Record {
  Stage stage;
  weir_result_t result;  // when finished
  Operation operation;
};

class Fault final : public hook::Hook {
 public:
  static constexpr char kName[] = "fault";
  static constexpr bool kPassesDevices = true;

  Fault(const weir_host_t* host, const weir_transport_part_t* parts,
        const weir_transport_config_t& config)
      : Hook(host, parts, config),
        held_count_(size_t{2} * inner_->caps.lane_count * config.rank_count + 1, 0),
        blocked_(held_count_.size(), 0) {
    held_.reserve(hook::InFlight<Record>::kCapacity);
  }

  weir_result_t start(const weir_transport_config_t&) override {
    const char* text = setting("WEIR_FAULT");
    const std::string reason = parse_plan(text == nullptr ? "" : text, &plan_);
    if (!reason.empty()) {
      return fail(WEIR_ERROR_INVALID_ARGUMENT, "WEIR_FAULT=%s: %s", text, reason.c_str());
    }
    active_ = plan_.rank == kEveryRank || plan_.rank == rank_;
    return WEIR_OK;
  }

  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns) override {
    const weir_result_t result = Hook::connect(addresses, address_bytes, deadline_ns);
    if (result != WEIR_OK || !active_ || plan_.connect_fails == 0) return result;
    return fail(WEIR_ERROR_TIMEOUT, "fault(%s): connect of rank %u fails as WEIR_FAULT asks",
                inner_->name, rank_);
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!active_ || !in_range(peer, lane)) return Hook::send(peer, lane, data, bytes, op);
    return post_send({true, peer, lane, const_cast<void*>(data), bytes, kHost}, op);
  }

  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!active_ || !in_range(peer, lane)) return Hook::recv(peer, lane, data, bytes, op);
    if (bytes != 0) ++recvs_;
    return post({false,
                 bytes != 0 && recvs_ == plan_.corrupt_at,
                 false,
                 peer,
                 lane,
                 data,
                 bytes,
                 0,
                 false,
                 {}},
                op);
  }

  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    if (!active_ || !in_range(m.peer, m.lane)) return device_message_inner(m, op);
    // What cannot be posted is refused at once.
    char reason[256];
    if (Hook::device_viable(m.peer, m.device, reason, sizeof reason) != WEIR_OK) {
      return device_message_inner(m, op);
    }
    if (m.sending) return post_send(m, op);
    return post({false, false, false, m.peer, m.lane, m.data, m.bytes, 0, false, {}, m.device}, op);
  }

  weir_result_t access(const hook::RemoteRequest& request, weir_transport_op_t* op) override {
    if (!active_) return access_inner(request, op);
    const bool is_get = request.is_get;
    if (!is_get) ++sends_;
    if (is_get && request.bytes != 0) ++recvs_;
    Operation operation = {!is_get,
                           is_get && request.bytes != 0 && recvs_ == plan_.corrupt_at,
                           !is_get && sends_ == plan_.duplicate_at,
                           0,
                           0,
                           request.data,
                           request.bytes,
                           0,
                           true,
                           request};
    if (!is_get && sends_ == plan_.drop_at) operation.due_ns = kNever;
    return post(operation, op);
  }

  // Operations still to be issued need it.
  void remote_close(weir_transport_remote_t* remote) override {
    if (is_held(remote)) {
      closing_.push_back(remote);
    } else {
      Hook::remote_close(remote);
    }
  }

  // A dropped operation is never issued, and holds its remote memory open until here.
  void close() override {
    for (weir_transport_remote_t* remote : closing_) Hook::remote_close(remote);
    closing_.clear();
    Hook::close();
  }

  weir_result_t test(weir_transport_op_t* op) override {
    release_due();
    Record* record = records_.find(op);
    if (record == nullptr) return inner_->test(instance_, op);
    if (has_failed(record->operation.peer)) {
      records_.remove(op);
      return failed();
    }
    if (record->stage == Stage::kHeld || stands_still(record->operation.peer)) {
      // A caller that tests only this operation must still move the others.
      const weir_result_t result = inner_->progress(instance_);
      return result == WEIR_OK ? WEIR_IN_PROGRESS : result;
    }
    weir_result_t result = record->result;
    if (record->stage == Stage::kPosted) {
      if (!first_done_ || !record->operation.duplicate) result = inner_->test(instance_, op);
      if (record->operation.duplicate) result = after_duplicate(result);
      if (result == WEIR_IN_PROGRESS) return result;
      if (result == WEIR_OK) finish(record->operation);
    }
    records_.remove(op);
    return result;
  }

  weir_result_t peer_leave(uint32_t peer) override {
    const weir_result_t result = leave_inner(peer);
    if (result != WEIR_OK) return result;
    const auto goes = [peer](const weir_transport_op_t*, const Record& record) {
      return !record.operation.one_sided && record.operation.peer == peer;
    };
    std::erase_if(held_, [&](const Held& held) {
      const Record* record = records_.find(held.op);
      const bool gone = record == nullptr || goes(held.op, *record);
      if (gone) --held_count_[held.channel];
      return gone;
    });
    records_.remove_if(goes);
    return WEIR_OK;
  }

  weir_result_t progress() override {
    release_due();
    return inner_->progress(instance_);
  }

 private:
  struct Held {
    weir_transport_op_t* op;
    size_t channel;
  };

  bool in_range(uint32_t peer, uint32_t lane) const {
    return peer < rank_count_ && lane < inner_->caps.lane_count;
  }

  size_t channel_of(const Operation& operation) const {
    if (operation.one_sided) return held_count_.size() - 1;
    const uint32_t direction = operation.sending ? 0 : inner_->caps.lane_count;
    return (direction + operation.lane) * size_t{rank_count_} + operation.peer;
  }

  weir_result_t post_send(const hook::DeviceMessage& m, weir_transport_op_t* op) {
    ++sends_;
    Operation operation = {
        true, false,   sends_ == plan_.duplicate_at, m.peer, m.lane, m.data, m.bytes, 0, false,
        {},   m.device};
    if (sends_ == plan_.drop_at) operation.due_ns = kNever;
    if (sends_ == plan_.reorder_at) {
      operation.due_ns = hook::monotonic_ns() + kReorderMs * 1'000'000;
      overtaken_ = op;
      overtaken_channel_ = channel_of(operation);
    }
    return post(operation, op);
  }

  weir_result_t post(Operation operation, weir_transport_op_t* op) {
    ++operations_;
    if (operations_ == plan_.kill_at) kill(getpid(), SIGKILL);
    if (operations_ == plan_.stop_at) kill(getpid(), SIGSTOP);
    if (operations_ == plan_.error_at) {
      return failed();
    }
    if (has_failed(operation.peer)) return failed();
    if (stands_still(operation.peer)) operation.due_ns = kNever;
    if (plan_.delay_us != 0 && operation.due_ns == 0) {
      const uint64_t delay_us = mix(plan_.seed, rank_, operations_) % (plan_.delay_us + 1);
      if (delay_us != 0) operation.due_ns = hook::monotonic_ns() + delay_us * 1000;
    }
    const size_t channel = channel_of(operation);
    const bool overtakes =
        overtaken_ != nullptr && overtaken_ != op && overtaken_channel_ == channel;
    const bool waits_in_turn = !operation.one_sided && held_count_[channel] != 0;
    if (!overtakes && (operation.due_ns != 0 || waits_in_turn)) {
      Record* record = records_.add(op);
      if (record == nullptr) return too_many();
      *record = {Stage::kHeld, WEIR_IN_PROGRESS, operation};
      held_.push_back({op, channel});
      ++held_count_[channel];
      return WEIR_IN_PROGRESS;
    }
    const weir_result_t result = issue(operation, op);
    if (result == WEIR_OK) finish(operation);
    if (overtakes) {
      if (Record* record = records_.find(overtaken_)) record->operation.due_ns = 0;
      overtaken_ = nullptr;
    }
    if (result == WEIR_IN_PROGRESS && is_watched(operation)) {
      Record* record = records_.add(op);
      if (record == nullptr) return too_many();
      *record = {Stage::kPosted, WEIR_IN_PROGRESS, operation};
    }
    return result;
  }

  bool has_failed(uint32_t peer) const {
    return plan_.fail_from != 0 && operations_ >= plan_.fail_from && concerns(peer);
  }
  bool stands_still(uint32_t peer) const {
    return plan_.still_from != 0 && operations_ >= plan_.still_from && concerns(peer);
  }
  bool concerns(uint32_t peer) const { return plan_.peer == kEveryRank || plan_.peer == peer; }
  // The operation's result does not depend on the inner transport alone.
  bool is_watched(const Operation& operation) const {
    return operation.corrupt || operation.duplicate || plan_.fail_from != 0 ||
           plan_.still_from != 0;
  }

  weir_result_t failed() const {
    return fail(WEIR_ERROR_SYSTEM,
                "fault(%s): operation %" PRIu64 " of rank %u fails as WEIR_FAULT asks",
                inner_->name, operations_, rank_);
  }

  weir_result_t too_many() const {
    return fail(WEIR_ERROR_NO_MEMORY,
                "fault(%s): more operations are in flight than this hook can hold", inner_->name);
  }

  // Gives the operation to the inner transport; one that is to be sent twice, twice.
  weir_result_t issue(const Operation& o, weir_transport_op_t* op) {
    const weir_result_t first = issue_once(o, op);
    if (!o.duplicate || first > WEIR_IN_PROGRESS) return first;
    first_done_ = first == WEIR_OK;
    second_ = issue_once(o, &second_op_);
    if (second_ > WEIR_IN_PROGRESS) return second_;
    return first_done_ && second_ == WEIR_OK ? WEIR_OK : WEIR_IN_PROGRESS;
  }

  weir_result_t issue_once(const Operation& o, weir_transport_op_t* op) {
    if (o.one_sided) return access_inner(o.request, op);
    if (o.device != kHost) {
      return device_message_inner({o.sending, o.peer, o.lane, o.data, o.bytes, o.device}, op);
    }
    return o.sending ? inner_->send(instance_, o.peer, o.lane, o.data, o.bytes, op)
                     : inner_->recv(instance_, o.peer, o.lane, o.data, o.bytes, op);
  }

  weir_result_t after_duplicate(weir_result_t first) {
    if (first > WEIR_IN_PROGRESS) return first;
    if (first == WEIR_OK || first_done_) {
      first_done_ = true;
      if (second_ == WEIR_IN_PROGRESS) second_ = inner_->test(instance_, &second_op_);
      return second_;
    }
    return WEIR_IN_PROGRESS;
  }

  void finish(const Operation& operation) {
    if (!operation.corrupt) return;
    const uint64_t bit = mix(plan_.seed, rank_, 0) % (operation.bytes * 8);
    static_cast<unsigned char*>(operation.data)[bit / 8] ^=
        static_cast<unsigned char>(1u << bit % 8);
  }

  void release_due() {
    if (held_.empty()) return;
    const uint64_t now = hook::monotonic_ns();
    ++round_;
    size_t kept = 0;
    for (const Held held : held_) {
      Record* record = records_.find(held.op);
      if (record == nullptr) {  // it has failed meanwhile
        --held_count_[held.channel];
        continue;
      }
      const bool waits = !record->operation.one_sided && blocked_[held.channel] == round_;
      if (waits || record->operation.due_ns > now) {
        blocked_[held.channel] = round_;
        held_[kept++] = held;
        continue;
      }
      --held_count_[held.channel];
      const Operation operation = record->operation;
      const weir_result_t result = issue(operation, held.op);
      if (result != WEIR_IN_PROGRESS) {
        if (result == WEIR_OK) finish(operation);
        record->stage = Stage::kFinished;
        record->result = result;
      } else if (is_watched(operation)) {
        record->stage = Stage::kPosted;
      } else {
        records_.remove(held.op);
      }
    }
    held_.resize(kept);
    std::erase_if(closing_, [&](weir_transport_remote_t* remote) {
      if (is_held(remote)) return false;
      Hook::remote_close(remote);
      return true;
    });
  }

  bool is_held(const weir_transport_remote_t* remote) {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& held) {
      const hook::RemoteRequest& request = records_.find(held.op)->operation.request;
      return request.remote == remote || request.signal == remote;
    });
  }

  Plan plan_;
  bool active_ = false;
  uint64_t operations_ = 0;
  uint64_t sends_ = 0;
  uint64_t recvs_ = 0;  // of at least one byte
  hook::InFlight<Record> records_;
  std::vector<Held> held_;  // in order of posting
  std::vector<weir_transport_remote_t*> closing_;
  std::vector<uint32_t> held_count_;  // per channel
  std::vector<uint64_t> blocked_;     // per channel: the round in which one had to stay
  uint64_t round_ = 0;
  const weir_transport_op_t* overtaken_ = nullptr;  // the send that the next one shall pass
  size_t overtaken_channel_ = 0;
  bool first_done_ = false;  // of the send that is made twice
  weir_result_t second_ = WEIR_OK;
  weir_transport_op_t second_op_{};
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
  return hook::make_table<Fault>(inner);
}

}  // namespace weir::plugins::hook_fault
