// SPDX-License-Identifier: Apache-2.0
// Puts and gets in parts, as messages like those of signals (plugins/remote/regions.h) with a value of 0.
// Their fields then mean:
//
//   word_offset        which of the kinds below
//   word_registration  number of the transfer, chosen by who asked
//   region, registration, offset   as of a signal; in an answer `offset` is the part's, as it was asked for
//   word_region        of kGet: bytes that are asked for; of an answer: bytes of the part, 0 if refused
#include <string.h>

#include <algorithm>

#include "plugins/ucx/instance.h"
#include "plugins/ucx/one_sided.h"

namespace weir::plugins::ucx {
namespace {

constexpr uint64_t kPut = 1;      // the bytes follow
constexpr uint64_t kPutDone = 2;  // answers it
constexpr uint64_t kGet = 3;
constexpr uint64_t kGetDone = 4;  // answers it; the bytes follow

}  // namespace

bool OneSided::goes_in_parts(const Remote& remote) const {
  return self_->peers[remote.rank].reports_errors;
}

// `op` has begun.
weir_result_t OneSided::transfer(Remote*, uint64_t offset_bytes, void* data, uint64_t bytes,
                                 bool is_get, RemoteOp* op) {
  Transfer* free = nullptr;
  for (const auto& one : transfers_) {
    if (one->op == nullptr) free = one.get();
  }
  if (free == nullptr) {
    transfers_.push_back(std::make_unique<Transfer>());
    free = transfers_.back().get();
  }
  *free = {op,    next_transfer_++, is_get, static_cast<unsigned char*>(data),
           bytes, offset_bytes,     0,      0};
  op->state = kRemoteInParts;
  op->request = reinterpret_cast<uint64_t>(free);
  ++unsent_count_;
  drive_transfers();
  return state_of(*op);
}

void OneSided::give_back(Transfer* transfer) {
  if (transfer->sent < transfer->bytes) --unsent_count_;
  transfer->op = nullptr;
}

// What waits for cells, and parts that their peers take. Answers first: who owes none asks on.
void OneSided::drive_transfers() {
  size_t answered = 0;
  while (answered < answers_.size() && send_answer(answers_[answered])) ++answered;
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<ptrdiff_t>(answered));
  // In turns, the oldest first, so that none starves.
  for (bool moved = true; moved && unsent_count_ != 0;) {
    moved = false;
    for (const auto& one : transfers_) {
      if (one->op != nullptr && one->sent < one->bytes) moved = send_part(one.get()) || moved;
    }
  }
}

// False: later.
bool OneSided::send_part(Transfer* transfer) {
  const Remote& remote = *transfer->op->remote;
  PeerSide& side = peers_[remote.rank];
  if (side.parts >= kPartsMax || self_->peers[remote.rank].endpoint == nullptr) return false;
  Cell* cell = free_cell();
  if (cell == nullptr) return false;
  const uint64_t bytes = std::min(kInlineBytes, transfer->bytes - transfer->sent);
  remote::Signal part;
  part.token = side.token_out;
  part.sender = self_->rank;
  part.region = remote.region;
  part.registration = remote.registration;
  part.offset_bytes = transfer->offset_bytes + transfer->sent;
  part.word_offset_bytes = transfer->is_get ? kGet : kPut;
  part.word_registration = transfer->id;
  part.bytes = transfer->is_get ? 0 : static_cast<uint32_t>(bytes);
  part.word_region = transfer->is_get ? static_cast<uint32_t>(bytes) : 0;
  const unsigned char* data = transfer->data + transfer->sent;
  transfer->sent += bytes;
  if (transfer->sent == transfer->bytes) --unsent_count_;
  ++side.parts;
  cell->peer = remote.rank;
  send_cell(cell, part, data);
  return true;
}

bool OneSided::send_answer(const remote::Signal& question) {
  if (self_->peers[question.sender].endpoint == nullptr) return true;  // nobody waits for it
  Cell* cell = free_cell();
  if (cell == nullptr) return false;
  remote::Signal answer = question;
  answer.token = peers_[question.sender].token_out;
  answer.sender = self_->rank;
  answer.bytes = 0;
  const unsigned char* data = nullptr;
  if (question.word_offset_bytes == kGet) {
    const uint64_t bytes = question.word_region;
    const remote::Region* region =
        bytes > kInlineBytes
            ? nullptr
            : regions_.find(question.region, question.registration, question.offset_bytes, bytes);
    if (region != nullptr) data = region->base + question.offset_bytes;
    answer.word_region = region != nullptr ? question.word_region : 0;
    answer.bytes = answer.word_region;
    answer.word_offset_bytes = kGetDone;
  } else {
    answer.word_offset_bytes = kPutDone;
  }
  cell->peer = question.sender;
  send_cell(cell, answer, data);
  return true;
}

// From the message handler. Nothing that it says is believed before it is looked up.
void OneSided::hear_part(const remote::Signal& message, const unsigned char* payload) {
  if (message.word_offset_bytes == kPutDone || message.word_offset_bytes == kGetDone) {
    return take_answer(message, payload);
  }
  // An honest peer has no more under way than there is room for.
  const bool is_put = message.word_offset_bytes == kPut;
  if (answers_.size() == answers_.capacity() || (!is_put && message.word_offset_bytes != kGet)) {
    return;
  }
  remote::Signal question = message;
  if (is_put) {
    const remote::Region* region =
        regions_.find(message.region, message.registration, message.offset_bytes, message.bytes);
    if (region != nullptr) memcpy(region->base + message.offset_bytes, payload, message.bytes);
    question.word_region = region != nullptr ? message.bytes : 0;
  }
  answers_.push_back(question);
}

void OneSided::take_answer(const remote::Signal& message, const unsigned char* payload) {
  PeerSide& side = peers_[message.sender];
  if (side.parts != 0) --side.parts;
  const auto found = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& one) {
    return one->op != nullptr && one->id == message.word_registration;
  });
  if (found == transfers_.end()) return;  // it has failed meanwhile
  Transfer* transfer = found->get();
  RemoteOp* op = transfer->op;
  const uint64_t bytes = message.word_region;
  const uint64_t at = message.offset_bytes - transfer->offset_bytes;
  const bool fits = op->remote->rank == message.sender &&
                    transfer->is_get == (message.word_offset_bytes == kGetDone) &&
                    (!transfer->is_get || bytes == message.bytes) && bytes <= kInlineBytes &&
                    remote::is_within(at, bytes, transfer->sent);
  if (!fits) return;
  if (bytes == 0) return fail(op, WEIR_ERROR_REFUSED);
  if (transfer->is_get) memcpy(transfer->data + at, payload, bytes);
  transfer->done += bytes;
  if (transfer->done < transfer->bytes) return;
  give_back(transfer);
  op->state = kRemoteUnderWay;
  finish(op, UCS_OK);
}

}  // namespace weir::plugins::ucx
