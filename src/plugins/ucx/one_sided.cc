// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/one_sided.h"

#include <string.h>

#include <algorithm>

#include "plugins/ucx/instance.h"

namespace weir::plugins::ucx {
namespace {

// Where a request keeps its operation; null: it is being posted, or nobody waits for it.
RemoteOp*& op_of(void* request) { return *static_cast<RemoteOp**>(request); }

// In place of an operation that was abandoned.
RemoteOp abandoned{};

uint64_t token_of(const net::Mac& key) {
  const net::Mac mac = net::hmac_sha256(key.data(), key.size(), "signal", 6);
  return remote::load(mac.data(), 8);
}

uint32_t rank_of(const RemoteOp& op) {
  return (op.remote != nullptr ? op.remote : op.signal)->rank;
}

}  // namespace

std::string OneSided::attach(Instance* self, const net::Mac& proof) {
  self_ = self;
  proof_ = proof;
  peers_.resize(self->rank_count);
  net::Mac own_key;
  if (!net::fill_random(own_key.data(), own_key.size())) return "getrandom failed";
  for (uint32_t i = 0; i < self->rank_count; ++i) {
    const bool own = i == self->rank;
    peers_[i].owner = this;
    peers_[i].rank = i;
    peers_[i].token_out = token_of(own ? own_key : self->control.key(self->rank, i, "ucx"));
    peers_[i].token_in = token_of(own ? own_key : self->control.key(i, self->rank, "ucx"));
  }
  ucp_am_handler_param_t param = {};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                     UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = kSignalId;
  param.cb = on_signal;
  param.arg = this;
  const ucs_status_t status = ucp_worker_set_am_recv_handler(self->network.worker(), &param);
  return status == UCS_OK
             ? ""
             : std::string("ucp_worker_set_am_recv_handler: ") + ucs_status_string(status);
}

bool OneSided::has_memory_open() const {
  const auto is_open = [](const auto& region) { return region->registration != 0; };
  return std::any_of(regions_.all().begin(), regions_.all().end(), is_open);
}

void OneSided::close() {
  closed_ = true;
  if (self_ == nullptr) return;
  for (const auto& remote : remotes_) ucp_rkey_destroy(remote->rkey);
  remotes_.clear();
  for (const auto& region : regions_.all()) {
    if (region->registration != 0) memory_deregister(region.get());
  }
}

weir_result_t OneSided::memory_register(void* base, uint64_t bytes, remote::Region** region) {
  if (base == nullptr || bytes == 0 || reinterpret_cast<uint64_t>(base) + bytes < bytes) {
    return self_->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "memory_register of " + text_of(bytes) +
            " bytes: the address is NULL, or the range is empty or overflows");
  }
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = base;
  params.length = bytes;
  params.memory_type = UCS_MEMORY_TYPE_HOST;
  ucp_mem_h handle = nullptr;
  const ucs_status_t status = ucp_mem_map(self_->network.context(), &params, &handle);
  if (status != UCS_OK) {
    return self_->report.fail(
        status == UCS_ERR_NO_MEMORY ? WEIR_ERROR_NO_MEMORY : WEIR_ERROR_SYSTEM,
        text_of(bytes) + " bytes cannot be registered: " + ucs_status_string(status) +
            self_->network.heard().take() + "; `ulimit -l` limits the memory that may be pinned");
  }
  answers_.reserve(size_t{self_->rank_count} * kPartsMax);
  make_cells();
  *region = regions_.add(base, bytes);
  (*region)->native = handle;
  return WEIR_OK;
}

weir_result_t OneSided::memory_key(const remote::Region& region, unsigned char* key,
                                   size_t* bytes) const {
  void* packed = nullptr;
  size_t packed_bytes = 0;
  const ucs_status_t status = ucp_rkey_pack(
      self_->network.context(), static_cast<ucp_mem_h>(region.native), &packed, &packed_bytes);
  if (status != UCS_OK) {
    return self_->report.fail(
        WEIR_ERROR_SYSTEM,
        std::string("ucp_rkey_pack: ") + ucs_status_string(status) + self_->network.heard().take());
  }
  remote::Key it;
  it.rank = self_->rank;
  it.region = region.index;
  it.registration = region.registration;
  it.address = reinterpret_cast<uint64_t>(region.base);
  it.bytes = region.bytes;
  const auto* begin = static_cast<const unsigned char*>(packed);
  if (packed_bytes <= remote::kOwnBytesMax) it.own.assign(begin, begin + packed_bytes);
  ucp_rkey_buffer_release(packed);
  if (packed_bytes > remote::kOwnBytesMax) {
    return self_->report.fail(WEIR_ERROR_UNSUPPORTED,
                              "UCX's key has " + text_of(packed_bytes) + " bytes, at most " +
                                  text_of(remote::kOwnBytesMax) +
                                  " are possible; use fewer devices with UCX_NET_DEVICES");
  }
  *bytes = remote::encode(it, proof_, key);
  return WEIR_OK;
}

void OneSided::memory_deregister(remote::Region* region) {
  (void)ucp_mem_unmap(self_->network.context(), static_cast<ucp_mem_h>(region->native));
  regions_.remove(region);
}

weir_result_t OneSided::remote_open(uint32_t peer, const unsigned char* bytes, size_t byte_count,
                                    Remote** remote) {
  if (peer >= self_->rank_count) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT, "remote_open of rank " + text_of(peer) +
                                                               " of " + text_of(self_->rank_count));
  }
  remote::Key key;
  const std::string reason = remote::decode(bytes, byte_count, proof_, peer, &key);
  if (!reason.empty()) {
    return self_->report.fail(WEIR_ERROR_REFUSED,
                              "the memory key of rank " + text_of(peer) + " is refused: " + reason);
  }
  const ucp_ep_h endpoint = self_->peers[peer].endpoint;
  if (endpoint == nullptr) return lost(peer);
  auto it = std::make_unique<Remote>();
  const ucs_status_t status = ucp_ep_rkey_unpack(endpoint, key.own.data(), &it->rkey);
  if (status != UCS_OK) return refused(peer, status);
  it->rank = peer;
  it->address = key.address;
  it->bytes = key.bytes;
  it->region = key.region;
  it->registration = key.registration;
  *remote = it.get();
  remotes_.push_back(std::move(it));
  make_cells();
  return WEIR_OK;
}

// A rank that has opened memory sends from them, and one that has registered some answers.
void OneSided::make_cells() {
  while (cells_.size() < kCellCount) {
    cells_.push_back(std::make_unique<Cell>());
    cells_.back()->owner = this;
  }
}

void OneSided::remote_close(Remote* remote) {
  remote->closed = true;
  if (remote->under_way == 0) destroy(remote);
}

void OneSided::destroy(Remote* remote) {
  ucp_rkey_destroy(remote->rkey);
  std::erase_if(remotes_, [&](const auto& one) { return one.get() == remote; });
}

// Whether a call's request is possible.
weir_result_t OneSided::check(const Remote* remote, uint64_t offset_bytes, uint64_t bytes,
                              const char* what) const {
  if (remote == nullptr) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              std::string(what) + " without remote memory");
  }
  if (!remote::is_within(offset_bytes, bytes, remote->bytes)) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              std::string(what) + " of " + text_of(bytes) + " bytes at offset " +
                                  text_of(offset_bytes) + " of " + text_of(remote->bytes) +
                                  " bytes of rank " + text_of(remote->rank));
  }
  const Peer& peer = self_->peers[remote->rank];
  return peer.ended || peer.endpoint == nullptr ? lost(remote->rank) : WEIR_OK;
}

weir_result_t OneSided::lost(uint32_t rank) const {
  const Peer& peer = self_->peers[rank];
  const std::string why =
      peer.status == UCS_OK ? "" : std::string(" (UCX: ") + ucs_status_string(peer.status) + ")";
  return self_->report.fail(
      WEIR_ERROR_PEER_LOST,
      "rank " + text_of(rank) +
          (peer.state == Peer::State::kLeft ? " has closed the communicator" : " was lost" + why) +
          ", while rank " + text_of(self_->rank) + " had its memory open");
}

weir_result_t OneSided::refused(uint32_t rank, ucs_status_t status) const {
  const bool memory = status == UCS_ERR_NO_MEMORY;
  return self_->report.fail(memory ? WEIR_ERROR_NO_MEMORY : WEIR_ERROR_PEER_LOST,
                            "the memory of rank " + text_of(rank) + " cannot be reached: " +
                                ucs_status_string(status) + self_->network.heard().take());
}

void OneSided::begin(Remote* remote, Remote* signal, RemoteOp* op) {
  op->state = kRemoteUnderWay;
  op->request = 0;
  op->remote = remote;
  op->signal = signal;
  op->before = nullptr;
  op->next = head_;
  if (head_ != nullptr) head_->before = op;
  head_ = op;
  if (remote != nullptr) ++remote->under_way;
  if (signal != nullptr) ++signal->under_way;
  posting_ = op;
}

// Takes the operation out of the list; its remote memory may go.
void OneSided::release(RemoteOp* op) {
  (op->before != nullptr ? op->before->next : head_) = op->next;
  if (op->next != nullptr) op->next->before = op->before;
  for (Remote* remote : {op->remote, op->signal}) {
    if (remote != nullptr) let_go(remote);
  }
}

void OneSided::let_go(Remote* remote) {
  if (--remote->under_way == 0 && remote->closed) destroy(remote);
}

void OneSided::fail(RemoteOp* op, weir_result_t result) {
  if (op->state == kRemoteInParts) give_back(reinterpret_cast<Transfer*>(op->request));
  const uint32_t rank = rank_of(*op);
  if (op->state == kRemoteArrived) --arrived_count_;
  release(op);
  op->state = kRemoteFailed + static_cast<uint64_t>(result);
  op->remote = reinterpret_cast<Remote*>(uintptr_t{rank});
}

void OneSided::finish(RemoteOp* op, ucs_status_t status) {
  op->request = 0;
  if (status != UCS_OK) {
    fail(op, status == UCS_ERR_NO_MEMORY ? WEIR_ERROR_NO_MEMORY : WEIR_ERROR_PEER_LOST);
  } else if (op->signal != nullptr) {
    op->state = kRemoteArrived;
    ++arrived_count_;
  } else {
    release(op);
    op->state = kOpDone;
  }
}

void OneSided::on_done(void* request, ucs_status_t status, void* data) {
  auto* self = static_cast<OneSided*>(data);
  RemoteOp* op = op_of(request);
  op_of(request) = nullptr;  // for its next use
  ucp_request_free(request);
  if (self->closed_ || op == &abandoned) return;
  self->finish(op != nullptr ? op : self->posting_, status);
}

// `request`: the operation ends with it.
weir_result_t OneSided::settle(ucs_status_ptr_t request, RemoteOp* op) {
  if (UCS_PTR_IS_ERR(request)) {
    const uint32_t rank = op->remote->rank;
    const ucs_status_t status = UCS_PTR_STATUS(request);
    fail(op, WEIR_ERROR_PEER_LOST);
    return refused(rank, status);
  }
  if (request == nullptr) {
    finish(op, UCS_OK);
  } else if (op->state == kRemoteUnderWay) {
    op->request = reinterpret_cast<uint64_t>(request);
    op_of(request) = op;
  }
  if (op->state == kRemoteArrived) send_signals();
  return state_of(*op);
}

weir_result_t OneSided::put_and_flush(uint64_t address, const void* data, uint64_t bytes,
                                      RemoteOp* op) {
  const ucp_ep_h endpoint = self_->peers[op->remote->rank].endpoint;
  ucp_request_param_t param;
  param.op_attr_mask = 0;
  const ucs_status_ptr_t put =
      ucp_put_nbx(endpoint, data, bytes, address, op->remote->rkey, &param);
  if (UCS_PTR_IS_ERR(put)) return settle(put, op);
  // The flush ends after it, at this end, too.
  if (put != nullptr) ucp_request_free(put);
  PeerSide& side = peers_[op->remote->rank];
  op->state = kRemoteUnflushed;
  op->request = side.next_flush;
  ++side.waiting;
  if (!side.flushing) start_flush(&side);
  if (op->state == kRemoteArrived) send_signals();
  return state_of(*op);
}

void OneSided::start_flush(PeerSide* side) {
  const ucp_ep_h endpoint = self_->peers[side->rank].endpoint;
  if (endpoint == nullptr) return;
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_flushed;
  param.user_data = side;
  const uint64_t number = side->next_flush++;
  side->waiting = 0;
  side->flushing = true;
  const ucs_status_ptr_t request = ucp_ep_flush_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  side->flushing = false;
  flushed(*side, number, UCS_PTR_STATUS(request));
}

void OneSided::start_flushes() {
  flushes_wanted_ = false;
  for (PeerSide& side : peers_) {
    if (!side.flushing && side.waiting != 0) start_flush(&side);
  }
}

void OneSided::on_flushed(void* request, ucs_status_t status, void* data) {
  ucp_request_free(request);
  auto* side = static_cast<PeerSide*>(data);
  side->flushing = false;
  if (side->owner->closed_) return;
  side->owner->flushed(*side, side->next_flush - 1, status);
  if (side->waiting != 0) side->owner->flushes_wanted_ = true;
}

// The puts that waited for this flush have ended.
void OneSided::flushed(const PeerSide& side, uint64_t number, ucs_status_t status) {
  for (RemoteOp* op = head_; op != nullptr;) {
    RemoteOp* next = op->next;
    if (op->state == kRemoteUnflushed && op->remote->rank == side.rank && op->request <= number) {
      finish(op, status);
    }
    op = next;
  }
}

weir_result_t OneSided::state_of(const RemoteOp& op) const {
  if (op.state == kOpDone) return WEIR_OK;
  return op.state >= kRemoteFailed ? outcome(op) : WEIR_IN_PROGRESS;
}

weir_result_t OneSided::access(Remote* remote, uint64_t offset_bytes, void* data, uint64_t bytes,
                               bool is_get, RemoteOp* op) {
  const weir_result_t checked = check(remote, offset_bytes, bytes, is_get ? "get" : "put");
  if (checked != WEIR_OK) return checked;
  if (bytes == 0) {
    op->state = kOpDone;
    return WEIR_OK;
  }
  begin(remote, nullptr, op);
  if (goes_in_parts(*remote)) return transfer(remote, offset_bytes, data, bytes, is_get, op);
  if (!is_get) return put_and_flush(remote->address + offset_bytes, data, bytes, op);
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = on_done;
  param.user_data = this;
  return settle(ucp_get_nbx(self_->peers[remote->rank].endpoint, data, bytes,
                            remote->address + offset_bytes, remote->rkey, &param),
                op);
}

weir_result_t OneSided::put_signal(Remote* remote, uint64_t offset_bytes, const void* data,
                                   uint64_t bytes, Remote* signal, uint64_t word_offset_bytes,
                                   uint64_t value, RemoteOp* op) {
  weir_result_t checked = check(signal, word_offset_bytes, sizeof(uint64_t), "a signal");
  if (checked == WEIR_OK && (bytes != 0 || remote != nullptr)) {
    checked = check(remote, offset_bytes, bytes, "put_signal");
  }
  if (checked != WEIR_OK) return checked;
  if ((remote != nullptr && remote->rank != signal->rank) || value == 0 ||
      (signal->address + word_offset_bytes) % sizeof(uint64_t) != 0) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "a signal of " + text_of(value) + " at offset " +
                                  text_of(word_offset_bytes) + " of memory of rank " +
                                  text_of(signal->rank) +
                                  ": the value must be at least 1, and the word aligned and in "
                                  "memory of the rank that receives the data");
  }
  Cell* cell = bytes <= kInlineBytes ? free_cell() : nullptr;
  if (cell != nullptr) {
    remote::Signal it = signal_of(*signal, word_offset_bytes, value);
    if (bytes != 0) {
      it.bytes = static_cast<uint32_t>(bytes);
      it.region = remote->region;
      it.registration = remote->registration;
      it.offset_bytes = offset_bytes;
    }
    cell->peer = signal->rank;
    send_cell(cell, it, data);
    op->state = kOpDone;
    return WEIR_OK;
  }
  if (bytes == 0) remote = signal;
  begin(remote, signal, op);
  op->word_offset_bytes = word_offset_bytes;
  op->value = value;
  if (bytes != 0 && goes_in_parts(*remote)) {
    return transfer(remote, offset_bytes, const_cast<void*>(data), bytes, false, op);
  }
  return bytes == 0 ? settle(nullptr, op)
                    : put_and_flush(remote->address + offset_bytes, data, bytes, op);
}

remote::Signal OneSided::signal_of(const Remote& word, uint64_t word_offset_bytes,
                                   uint64_t value) const {
  remote::Signal signal;
  signal.token = peers_[word.rank].token_out;
  signal.sender = self_->rank;
  signal.word_region = word.region;
  signal.word_registration = word.registration;
  signal.word_offset_bytes = word_offset_bytes;
  signal.value = value;
  return signal;
}

OneSided::Cell* OneSided::free_cell() {
  for (const auto& cell : cells_) {
    if (!cell->busy) return cell.get();
  }
  return nullptr;
}

// The message leaves from the cell; a failure afterwards means that the peer has ended.
void OneSided::send_cell(Cell* cell, const remote::Signal& signal, const void* data) {
  remote::encode(signal, cell->bytes);
  if (signal.bytes != 0) memcpy(cell->bytes + remote::kSignalBytes, data, signal.bytes);
  ucp_request_param_t param;
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = on_sent;
  param.user_data = cell;
  cell->busy = true;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(self_->peers[cell->peer].endpoint, kSignalId, nullptr, 0, cell->bytes,
                      remote::kSignalBytes + signal.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  cell->busy = false;
  if (request == nullptr) ++peers_[cell->peer].sent;
}

void OneSided::on_sent(void* request, ucs_status_t status, void* data) {
  ucp_request_free(request);
  auto* cell = static_cast<Cell*>(data);
  cell->busy = false;
  if (status == UCS_OK) ++cell->owner->peers_[cell->peer].sent;
}

void OneSided::send_signals() {
  for (RemoteOp* op = head_; op != nullptr && arrived_count_ != 0;) {
    RemoteOp* next = op->next;
    if (op->state == kRemoteArrived) {
      Cell* cell = free_cell();
      if (cell == nullptr) return;
      --arrived_count_;
      cell->peer = op->signal->rank;
      const remote::Signal signal = signal_of(*op->signal, op->word_offset_bytes, op->value);
      if (self_->peers[cell->peer].endpoint != nullptr) send_cell(cell, signal, nullptr);
      release(op);
      op->state = kOpDone;
    }
    op = next;
  }
}

// Everything that it names is looked up here and checked; a message without the token is ignored.
ucs_status_t OneSided::on_signal(void* data, const void* header, size_t header_bytes, void* message,
                                 size_t bytes, const ucp_am_recv_param_t* param) {
  auto* self = static_cast<OneSided*>(data);
  const bool has_header = header_bytes == remote::kSignalBytes;
  const bool is_to_come = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (self->closed_ || (is_to_come && !has_header) ||
      (!has_header && (header_bytes != 0 || bytes < remote::kSignalBytes))) {
    return UCS_OK;
  }
  const auto* at = static_cast<const unsigned char*>(has_header ? header : message);
  const remote::Signal signal = remote::decode_signal(at);
  const unsigned char* payload =
      has_header ? static_cast<const unsigned char*>(message) : at + remote::kSignalBytes;
  if (signal.sender >= self->peers_.size() ||
      signal.token != self->peers_[signal.sender].token_in ||
      signal.bytes != bytes - (has_header ? 0 : remote::kSignalBytes)) {
    return UCS_OK;
  }
  if (is_to_come) return self->land(signal, message);
  ++self->peers_[signal.sender].received;
  if (signal.value == 0) {
    self->hear_part(signal, payload);
    return UCS_OK;
  }
  if (!self->regions_.apply(signal, payload) && !self->told_of_refusal_) {
    self->told_of_refusal_ = true;
    self->self_->report.log(
        Report::kWarning, "a signal of rank " + text_of(signal.sender) + " for memory that rank " +
                              text_of(self->self_->rank) +
                              " has not registered, or has deregistered, was dropped");
  }
  return UCS_OK;
}

weir_result_t OneSided::signal_read(const remote::Region& region, uint64_t offset_bytes,
                                    uint64_t* value) const {
  if (!remote::is_word(region, offset_bytes)) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "no aligned word of 8 bytes lies at offset " + text_of(offset_bytes) +
                                  " of " + text_of(region.bytes) + " bytes of registered memory");
  }
  *value = remote::read_word(region, offset_bytes);
  return WEIR_OK;
}

// Why UCX gave a peer up is known only when its goodbye or its death is noticed.
weir_result_t OneSided::outcome(const RemoteOp& op) const {
  const auto rank = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(op.remote));
  const auto result = static_cast<weir_result_t>(op.state - kRemoteFailed);
  if (result == WEIR_ERROR_REFUSED) {
    return self_->report.fail(
        result,
        "rank " + text_of(rank) + " has not registered that memory, or has deregistered it");
  }
  if (result != WEIR_ERROR_PEER_LOST) {
    return self_->report.fail(result,
                              "UCX has no memory for an operation" + self_->network.heard().take());
  }
  if (self_->peers[rank].state == Peer::State::kBroken) return WEIR_IN_PROGRESS;
  return lost(rank);
}

bool OneSided::awaits(uint32_t peer) const {
  const RemoteOp* op = head_;
  while (op != nullptr && rank_of(*op) != peer) op = op->next;
  return op != nullptr;
}

void OneSided::abandon(uint32_t peer) {
  for (auto& cell : cells_) {
    if (!cell->busy || cell->peer != peer) continue;
    kept_cells_.push_back(std::move(cell));
    cell = std::make_unique<Cell>();
    cell->owner = this;
  }
  for (RemoteOp* op = head_; op != nullptr;) {
    RemoteOp* next = op->next;
    if (rank_of(*op) == peer) {
      if (op->state == kRemoteUnderWay && op->request != 0)
        op_of(reinterpret_cast<void*>(op->request)) = &abandoned;
      fail(op, WEIR_ERROR_PEER_LOST);
    }
    op = next;
  }
}

}  // namespace weir::plugins::ucx
