// SPDX-License-Identifier: Apache-2.0
// hook_sum: sends a checksum after every message, so that a change by a network, a driver or memory
// on the way is an error that names the sender, and not a wrong result. It detects changed bytes,
// and messages that were lost, repeated or misrouted. It does not protect from an attacker that
// changes both message and checksum; TLS does (net/tls.h).
//
// Each message is followed on its lane by a second one:
//
//   offset  bytes  field (integers in the byte order of the machine)
//        0      8  XXH3 (64 bits) of the message, the place of the sender as its seed:
//                  rank << 32 | lane
//        8      8  bytes of the message
//       16      8  number of the message on its lane and direction: 0, 1, 2, …
//       24      8  XXH3 of the bytes before, with the same seed
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#include <vector>

#include "plugins/hook/hook.h"
#include "plugins/hook/in_flight.h"

namespace weir::plugins::hook_sum {
namespace {

struct Trailer {
  uint64_t sum;
  uint64_t bytes;
  uint64_t number;
  uint64_t own_sum;
};

// The second message of an operation; its memory stays while it is under way.
struct Slot {
  weir_transport_op_t op;
  Trailer trailer;
};

struct Record {
  uint32_t slot;
  uint32_t peer;
  uint32_t lane;
  bool sending;
  bool body_done;
  bool trailer_done;
  const void* data;
  uint64_t bytes;
  uint64_t number;
};

class Sum final : public hook::Hook {
 public:
  static constexpr char kName[] = "sum";

  // The hook sees only messages, and makes two of each.
  static void limit(const weir_transport_part_t*, weir_transport_caps_t* caps) {
    caps->bits &= WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
                  WEIR_CAP_SEALED;
    caps->credit = caps->credit > 2 ? caps->credit / 2 : 1;
  }

  Sum(const weir_host_t* host, const weir_transport_part_t* parts,
      const weir_transport_config_t& config)
      : Hook(host, parts, config),
        slots_(hook::InFlight<Record>::kCapacity),
        numbers_(size_t{2} * inner_->caps.lane_count * config.rank_count, 0) {
    free_.reserve(slots_.size());
    for (size_t i = slots_.size(); i-- > 0;) free_.push_back(static_cast<uint32_t>(i));
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    // The inner transport itself reports what it refuses.
    if (!in_range(peer, lane)) return Hook::send(peer, lane, data, bytes, op);
    if (free_.empty()) return too_many();
    const weir_result_t body = Hook::send(peer, lane, data, bytes, op);
    if (body > WEIR_IN_PROGRESS) return body;
    const uint64_t number = numbers_[channel_of(true, peer, lane)]++;
    Slot& slot = slots_[free_.back()];
    slot.trailer = {sum_of(rank_, lane, data, bytes), bytes, number, 0};
    slot.trailer.own_sum = own_sum_of(rank_, lane, slot.trailer);
    slot.op = {};
    const weir_result_t trailer =
        Hook::send(peer, lane, &slot.trailer, sizeof slot.trailer, &slot.op);
    return posted({0, peer, lane, true, false, false, data, bytes, number}, op, body, trailer);
  }

  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    if (!in_range(peer, lane)) return Hook::recv(peer, lane, data, bytes, op);
    if (free_.empty()) return too_many();
    const weir_result_t body = Hook::recv(peer, lane, data, bytes, op);
    if (body > WEIR_IN_PROGRESS) return body;
    const uint64_t number = numbers_[channel_of(false, peer, lane)]++;
    Slot& slot = slots_[free_.back()];
    slot = {};
    const weir_result_t trailer =
        Hook::recv(peer, lane, &slot.trailer, sizeof slot.trailer, &slot.op);
    return posted({0, peer, lane, false, false, false, data, bytes, number}, op, body, trailer);
  }

  weir_result_t test(weir_transport_op_t* op) override {
    Record* record = records_.find(op);
    if (record == nullptr) return Hook::test(op);
    weir_result_t result = WEIR_OK;
    if (!record->body_done) {
      result = Hook::test(op);
      record->body_done = result == WEIR_OK;
    }
    // An error of the message says more than one of the checksum after it.
    if (result == WEIR_OK && !record->trailer_done) {
      result = Hook::test(&slots_[record->slot].op);
      record->trailer_done = result == WEIR_OK;
    }
    if (result == WEIR_IN_PROGRESS) return result;
    const Record done = *record;
    records_.remove(op);
    // The inner transport may still use the memory of an operation that failed.
    if (result != WEIR_OK) return result;
    return finish(done);
  }

 private:
  bool in_range(uint32_t peer, uint32_t lane) const {
    return peer < rank_count_ && lane < inner_->caps.lane_count;
  }
  size_t channel_of(bool sending, uint32_t peer, uint32_t lane) const {
    return ((sending ? 0 : inner_->caps.lane_count) + lane) * size_t{rank_count_} + peer;
  }
  static uint64_t sum_of(uint32_t sender, uint32_t lane, const void* data, uint64_t bytes) {
    return XXH3_64bits_withSeed(data, bytes, uint64_t{sender} << 32 | lane);
  }
  static uint64_t own_sum_of(uint32_t sender, uint32_t lane, const Trailer& trailer) {
    return sum_of(sender, lane, &trailer, offsetof(Trailer, own_sum));
  }
  weir_result_t too_many() const {
    return fail(WEIR_ERROR_NO_MEMORY,
                "sum(%s): more operations are in flight than this hook can hold", inner_->name);
  }

  weir_result_t posted(Record record, weir_transport_op_t* op, weir_result_t body,
                       weir_result_t trailer) {
    record.slot = free_.back();
    free_.pop_back();
    if (trailer > WEIR_IN_PROGRESS) return trailer;
    record.body_done = body == WEIR_OK;
    record.trailer_done = trailer == WEIR_OK;
    if (record.body_done && record.trailer_done) return finish(record);
    Record* kept = records_.add(op);
    if (kept == nullptr) return too_many();
    *kept = record;
    return WEIR_IN_PROGRESS;
  }

  // Called when both messages have been sent, or received.
  weir_result_t finish(const Record& record) {
    free_.push_back(record.slot);
    if (record.sending) return WEIR_OK;
    const Trailer& told = slots_[record.slot].trailer;
    if (told.own_sum != own_sum_of(record.peer, record.lane, told)) {
      return fail(WEIR_ERROR_SYSTEM,
                  "sum(%s): what should be the checksum of message %" PRIu64
                  " from rank %u to rank %u (lane %u) is none: it was altered in transit, or a "
                  "message was lost or repeated on the way",
                  inner_->name, record.number, record.peer, rank_, record.lane);
    }
    if (told.number != record.number) {
      return fail(WEIR_ERROR_SYSTEM,
                  "sum(%s): message %" PRIu64
                  " from rank %u to rank %u (lane %u) arrived in place of message %" PRIu64
                  ": one was lost or repeated on the way",
                  inner_->name, told.number, record.peer, rank_, record.lane, record.number);
    }
    const uint64_t sum = sum_of(record.peer, record.lane, record.data, record.bytes);
    if (told.bytes == record.bytes && told.sum == sum) return WEIR_OK;
    return fail(
        WEIR_ERROR_SYSTEM,
        "sum(%s): a message of %" PRIu64 " bytes from rank %u to rank %u (lane %u, number %" PRIu64
        ") was altered in transit: its checksum is %016" PRIx64 ", not %016" PRIx64
        "; suspect the network or the memory of the two hosts",
        inner_->name, record.bytes, record.peer, rank_, record.lane, record.number, sum, told.sum);
  }

  hook::InFlight<Record> records_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;     // slots
  std::vector<uint64_t> numbers_;  // per direction, lane and peer: of the next message
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
  return hook::make_table<Sum>(inner);
}

}  // namespace weir::plugins::hook_sum
