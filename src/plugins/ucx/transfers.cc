// SPDX-License-Identifier: Apache-2.0
// Puts and gets in parts, as messages like those of signals (plugins/remote/regions.h) with a value
// of 0. Their fields then mean:
//
//   word_offset        which of the kinds below
//   word_registration  number of the transfer, chosen by who asked
//   region, registration, offset   as of a signal; in an answer `offset` is the part's, as it was
//                                  asked for
//   word_region        of kGet: bytes that are asked for; of an answer: bytes of the part, 0 if
//                      refused
//
// The bytes follow in the message, or are the message whose header this is.
#include <string.h>

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

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
  *free = {};
  free->op = op;
  free->id = next_transfer_++;
  free->is_get = is_get;
  free->data = static_cast<unsigned char*>(data);
  free->bytes = bytes;
  free->offset_bytes = offset_bytes;
  op->state = kRemoteInParts;
  op->request = reinterpret_cast<uint64_t>(free);
  ++unsent_count_;
  drive_transfers();
  return state_of(*op);
}

void OneSided::give_back(Transfer* transfer) {
  if (transfer->sent < transfer->bytes) --unsent_count_;
  if (transfer->in_use != 0) {
    for (const auto* cells : {&cells_, &kept_cells_}) {
      for (const auto& cell : *cells) {
        if (cell->transfer == transfer) cell->transfer = nullptr;
      }
    }
    for (Landing* one = landings_.get(); one != nullptr; one = one->next.get()) {
      if (one->transfer == transfer) one->transfer = nullptr;
    }
  }
  transfer->op = nullptr;
}

// The operation ends with its last answer, but not while UCX has its bytes.
void OneSided::settle(Transfer* transfer) {
  if (transfer->op == nullptr || transfer->in_use != 0) return;
  RemoteOp* op = transfer->op;
  if (transfer->lacks_memory) return fail(op, WEIR_ERROR_NO_MEMORY);
  if (transfer->refused) return fail(op, WEIR_ERROR_REFUSED);
  if (transfer->done < transfer->bytes) return;
  give_back(transfer);
  op->state = kRemoteUnderWay;
  finish(op, UCS_OK);
}

// Sends what waits for cells, and parts that their peers take. Answers come first: a rank that owes
// none goes on asking.
void OneSided::drive_transfers() {
  size_t answered = 0;
  while (answered < answers_.size() && send_answer(answers_[answered])) ++answered;
  answers_.erase(answers_.begin(), answers_.begin() + static_cast<ptrdiff_t>(answered));
  // In turns, the oldest first, so that none starves.
  for (bool moved = true; moved && unsent_count_ != 0;) {
    moved = false;
    for (const auto& one : transfers_) {
      if (one->op != nullptr && one->sent < one->bytes && !one->refused) {
        moved = send_part(one.get()) || moved;
      }
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
  const uint64_t bytes = std::min(kPartBytes, transfer->bytes - transfer->sent);
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
  if (part.bytes > kInlineBytes) {
    send_in_place(cell, part, transfer, data);
  } else {
    send_cell(cell, part, data);
  }
  return true;
}

// UCX chooses how; the cell holds the header. `transfer`: null for an answer, whose bytes are
// registered memory.
void OneSided::send_in_place(Cell* cell, const remote::Signal& part, Transfer* transfer,
                             const unsigned char* data) {
  remote::encode(part, cell->bytes);
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_part_read;
  param.user_data = cell;
  cell->busy = true;
  cell->transfer = transfer;
  if (transfer != nullptr) ++transfer->in_use;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(self_->peers[cell->peer].endpoint, kSignalId, cell->bytes,
                      remote::kSignalBytes, data, part.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  cell->busy = false;
  cell->transfer = nullptr;
  if (transfer != nullptr) --transfer->in_use;
  if (request == nullptr) ++peers_[cell->peer].sent;
}

void OneSided::on_part_read(void* request, ucs_status_t status, void* data) {
  auto* cell = static_cast<Cell*>(data);
  OneSided* self = cell->owner;
  Transfer* transfer = cell->transfer;
  cell->transfer = nullptr;
  on_sent(request, status, cell);
  if (transfer == nullptr || self->closed_) return;
  --transfer->in_use;
  self->settle(transfer);
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
        bytes > kPartBytes
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
  if (answer.bytes > kInlineBytes) {
    send_in_place(cell, answer, nullptr, data);
  } else {
    send_cell(cell, answer, data);
  }
  return true;
}

// From the message handler. Nothing that it says is trusted before it is looked up.
void OneSided::hear_part(const remote::Signal& message, const unsigned char* payload) {
  if (message.word_offset_bytes == kPutDone || message.word_offset_bytes == kGetDone) {
    return take_answer(message, payload);
  }
  // An honest peer has no more under way than there is room for.
  const bool is_put = message.word_offset_bytes == kPut;
  if (answers_.size() == answers_.capacity() || (!is_put && message.word_offset_bytes != kGet)) {
    return;
  }
  if (!is_put) {
    answers_.push_back(message);
    return;
  }
  const remote::Region* region =
      regions_.find(message.region, message.registration, message.offset_bytes, message.bytes);
  if (region != nullptr) memcpy(region->base + message.offset_bytes, payload, message.bytes);
  answer_put(message, region != nullptr);
}

void OneSided::answer_put(const remote::Signal& question, bool stored) {
  if (answers_.size() == answers_.capacity()) return;
  answers_.push_back(question);
  answers_.back().word_region = stored ? question.bytes : 0;
}

// Null: no memory.
OneSided::Landing* OneSided::free_landing() {
  for (Landing* one = landings_.get(); one != nullptr; one = one->next.get()) {
    if (!one->busy) return one;
  }
  std::unique_ptr<Landing> made(new (std::nothrow) Landing);
  if (made == nullptr) return nullptr;
  made->owner = this;
  made->next = std::move(landings_);
  landings_ = std::move(made);
  return landings_.get();
}

// From the message handler: the bytes have not come yet. UCS_OK: they are not wanted, and UCX
// releases their sender.
ucs_status_t OneSided::land(const remote::Signal& message, void* descriptor) {
  const bool is_part = message.value == 0 && message.bytes != 0;
  const bool is_put = is_part && message.word_offset_bytes == kPut;
  const bool is_answer = is_part && message.word_offset_bytes == kGetDone;
  const remote::Region* region = is_put ? regions_.find(message.region, message.registration,
                                                        message.offset_bytes, message.bytes)
                                        : nullptr;
  Transfer* transfer = is_answer ? answered_by(message) : nullptr;
  Landing* landing = region != nullptr || transfer != nullptr ? free_landing() : nullptr;
  if (landing != nullptr) {
    unsigned char* const to =
        region != nullptr ? region->base + message.offset_bytes
                          : transfer->data + (message.offset_bytes - transfer->offset_bytes);
    landing->busy = true;
    landing->transfer = transfer;
    landing->message = message;
    if (transfer != nullptr) ++transfer->in_use;
    ucp_request_param_t param;
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv_am = on_landed;
    param.user_data = landing;
    const ucs_status_ptr_t request =
        ucp_am_recv_data_nbx(self_->network.worker(), descriptor, to, message.bytes, &param);
    if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
    landing->busy = false;
    landing->transfer = nullptr;
    if (transfer != nullptr) --transfer->in_use;
  }
  PeerSide& side = peers_[message.sender];
  ++side.received;
  if (is_put) answer_put(message, false);
  if (is_answer && side.parts != 0) --side.parts;
  if (transfer != nullptr) {
    transfer->lacks_memory = true;
    settle(transfer);
  }
  return UCS_OK;
}

void OneSided::on_landed(void* request, ucs_status_t status, size_t bytes, void* data) {
  ucp_request_free(request);
  auto* landing = static_cast<Landing*>(data);
  OneSided* self = landing->owner;
  const remote::Signal message = landing->message;
  Transfer* transfer = landing->transfer;
  landing->busy = false;
  landing->transfer = nullptr;
  if (self->closed_) return;
  if (transfer != nullptr) --transfer->in_use;
  // If UCX fails to deliver a part, the sender is treated as failed.
  if (status == UCS_OK && bytes == message.bytes) {
    PeerSide& side = self->peers_[message.sender];
    ++side.received;
    if (message.word_offset_bytes == kPut) {
      self->answer_put(message, true);
    } else {
      if (side.parts != 0) --side.parts;
      if (transfer != nullptr) transfer->done += bytes;
    }
  }
  if (transfer != nullptr) self->settle(transfer);
}

// Null: it has failed meanwhile, or waits for something else.
OneSided::Transfer* OneSided::answered_by(const remote::Signal& message) const {
  const auto found = std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& one) {
    return one->op != nullptr && one->id == message.word_registration;
  });
  if (found == transfers_.end()) return nullptr;
  Transfer* transfer = found->get();
  const uint64_t bytes = message.word_region;
  const uint64_t at = message.offset_bytes - transfer->offset_bytes;
  const bool fits = transfer->op->remote->rank == message.sender &&
                    transfer->is_get == (message.word_offset_bytes == kGetDone) &&
                    (!transfer->is_get || bytes == message.bytes) && bytes <= kPartBytes &&
                    remote::is_within(at, bytes, transfer->sent);
  return fits ? transfer : nullptr;
}

void OneSided::take_answer(const remote::Signal& message, const unsigned char* payload) {
  PeerSide& side = peers_[message.sender];
  if (side.parts != 0) --side.parts;
  Transfer* transfer = answered_by(message);
  if (transfer == nullptr) return;
  const uint64_t bytes = message.word_region;
  transfer->refused = transfer->refused || bytes == 0;
  if (transfer->is_get && bytes != 0) {
    memcpy(transfer->data + (message.offset_bytes - transfer->offset_bytes), payload, bytes);
  }
  transfer->done += bytes;
  settle(transfer);
}

}  // namespace weir::plugins::ucx
