// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/one_sided.h"

#include <rdma/fi_errno.h>

#include <algorithm>

#include "plugins/ofi/instance.h"

namespace weir::plugins::ofi {
namespace {

// The transport's own part of a key: the provider's key (8 bytes, little-endian), and the address
// of the first byte modulo 8 (1 byte), since peers may name memory from 0 on.
constexpr size_t kOwnKeyBytes = 9;

uint64_t state_of(const RemoteOp& op) { return op.state & kRemoteStateMask; }
uint64_t word_offset_of(const RemoteOp& op) { return op.state >> kRemoteStateBits; }
bool is_get(const RemoteOp& op) { return (state_of(op) & kRemoteGet) != 0; }
void set_state(RemoteOp* op, uint64_t state) {
  op->state = (op->state & ~(kRemoteStateMask & ~kRemoteGet)) | state;
}
uint32_t rank_of(const RemoteOp& op) {
  return (op.remote != nullptr ? op.remote : op.signal)->target.peer;
}

}  // namespace

void OneSided::attach(Instance* self, Endpoint* endpoint, const net::Mac& proof) {
  self_ = self;
  endpoint_ = endpoint;
  proof_ = proof;
}

weir_result_t OneSided::memory_register(void* base, uint64_t bytes, remote::Region** region) {
  if (base == nullptr || bytes == 0 || reinterpret_cast<uint64_t>(base) + bytes < bytes) {
    return self_->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "memory_register of " + text_of(bytes) +
            " bytes: the address is NULL, or the range is empty or overflows");
  }
  if (!endpoint_->remote_gap().empty()) {
    return self_->report.fail(WEIR_ERROR_UNSUPPORTED, endpoint_->remote_gap());
  }
  if (!endpoint_->hear_signals(this)) {
    return self_->report.fail(WEIR_ERROR_SYSTEM, endpoint_->reason());
  }
  remote::Region* it = regions_.add(base, bytes);
  fid_mr* native = endpoint_->expose(base, bytes, &it->native_key, &it->native_address);
  if (native == nullptr) {
    regions_.remove(it);
    return self_->report.fail(
        WEIR_ERROR_SYSTEM, text_of(bytes) + " bytes cannot be registered: " + endpoint_->reason() +
                               "; `ulimit -l` limits the memory that may be pinned");
  }
  it->native = native;
  *region = it;
  return WEIR_OK;
}

weir_result_t OneSided::memory_key(const remote::Region& region, unsigned char* key,
                                   size_t* bytes) const {
  remote::Key it;
  it.rank = self_->rank;
  it.region = region.index;
  it.registration = region.registration;
  it.address = region.native_address;
  it.bytes = region.bytes;
  it.own.resize(kOwnKeyBytes);
  remote::store(it.own.data(), region.native_key, 8);
  remote::store(it.own.data() + 8, reinterpret_cast<uint64_t>(region.base) % sizeof(uint64_t), 1);
  *bytes = remote::encode(it, proof_, key);
  return WEIR_OK;
}

void OneSided::memory_deregister(remote::Region* region) {
  endpoint_->hide(static_cast<fid_mr*>(region->native));
  regions_.remove(region);
}

weir_result_t OneSided::remote_open(uint32_t peer, const unsigned char* bytes, size_t byte_count,
                                    Remote** remote) {
  if (peer >= self_->rank_count) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT, "remote_open of rank " + text_of(peer) +
                                                               " of " + text_of(self_->rank_count));
  }
  remote::Key key;
  std::string reason = remote::decode(bytes, byte_count, proof_, peer, &key);
  if (reason.empty() && key.own.size() != kOwnKeyBytes) reason = "it names no memory";
  if (!reason.empty()) {
    return self_->report.fail(WEIR_ERROR_REFUSED,
                              "the memory key of rank " + text_of(peer) + " is refused: " + reason);
  }
  if (!endpoint_->prepare_signals()) {
    return self_->report.fail(WEIR_ERROR_SYSTEM, endpoint_->reason());
  }
  with_provider_.reserve(kWithProviderMax);
  auto it = std::make_unique<Remote>();
  it->target = {peer, key.address, remote::load(key.own.data(), 8)};
  it->alignment_bytes = key.own[8];
  it->bytes = key.bytes;
  it->region = key.region;
  it->registration = key.registration;
  *remote = it.get();
  remotes_.push_back(std::move(it));
  return WEIR_OK;
}

void OneSided::remote_close(Remote* remote) {
  remote->closed = true;
  ++remote->under_way;
  let_go(remote);
}

void OneSided::let_go(Remote* remote) {
  if (--remote->under_way == 0 && remote->closed) {
    std::erase_if(remotes_, [&](const auto& one) { return one.get() == remote; });
  }
}

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
                                  " bytes of rank " + text_of(remote->target.peer));
  }
  if (bytes > endpoint_->message_bytes_max()) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              std::string(what) + " of " + text_of(bytes) + " bytes; provider " +
                                  endpoint_->provider() + " moves at most " +
                                  text_of(endpoint_->message_bytes_max()));
  }
  return self_->has_ended(remote->target.peer) ? lost(remote->target.peer) : WEIR_OK;
}

weir_result_t OneSided::lost(uint32_t rank) const {
  const bool closed = self_->has_left(rank);
  const std::string why = closed || provider_reason_.empty() ? "" : " (" + provider_reason_ + ")";
  return self_->report.fail(WEIR_ERROR_PEER_LOST,
                            "rank " + text_of(rank) +
                                (closed ? " has closed the communicator" : " was lost" + why) +
                                ", while rank " + text_of(self_->rank) + " had its memory open");
}

weir_result_t OneSided::access(Remote* remote, uint64_t offset_bytes, void* data, uint64_t bytes,
                               bool is_get, RemoteOp* op) {
  const weir_result_t checked = check(remote, offset_bytes, bytes, is_get ? "get" : "put");
  if (checked != WEIR_OK) return checked;
  op->state = kRemoteWaits | (is_get ? kRemoteGet : 0);
  op->data = data;
  op->bytes = bytes;
  op->offset_bytes = offset_bytes;
  op->remote = remote;
  op->signal = nullptr;
  return begin(op);
}

weir_result_t OneSided::put_signal(Remote* remote, uint64_t offset_bytes, const void* data,
                                   uint64_t bytes, Remote* signal, uint64_t word_offset_bytes,
                                   uint64_t value, RemoteOp* op) {
  weir_result_t checked = check(signal, word_offset_bytes, sizeof(uint64_t), "a signal");
  if (checked == WEIR_OK && (bytes != 0 || remote != nullptr)) {
    checked = check(remote, offset_bytes, bytes, "put_signal");
  }
  if (checked != WEIR_OK) return checked;
  if ((remote != nullptr && remote->target.peer != signal->target.peer) || value == 0 ||
      (signal->alignment_bytes + word_offset_bytes) % sizeof(uint64_t) != 0) {
    return self_->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "a signal of " + text_of(value) + " at offset " +
                                  text_of(word_offset_bytes) + " of memory of rank " +
                                  text_of(signal->target.peer) +
                                  ": the value must be at least 1, and the word aligned and in "
                                  "memory of the rank that receives the data");
  }
  op->state = kRemoteWaits | word_offset_bytes << kRemoteStateBits;
  op->data = const_cast<void*>(data);
  op->bytes = bytes;
  op->offset_bytes = offset_bytes;
  op->remote = bytes != 0 ? remote : nullptr;
  op->signal = signal;
  op->value = value;
  return begin(op);
}

weir_result_t OneSided::begin(RemoteOp* op) {
  if (op->signal == nullptr && op->bytes == 0) {
    op->state = kOpDone;
    return WEIR_OK;
  }
  ++under_way_;
  for (Remote* remote : {op->remote, op->signal}) {
    if (remote != nullptr) ++remote->under_way;
  }
  const Posted posted = head_ != nullptr ? Posted::kFull : post(op);
  if (posted == Posted::kFull) queue(op);
  if (op->state == kOpDone) return WEIR_OK;
  return state_of(*op) >= kRemoteFailed ? outcome(*op) : WEIR_IN_PROGRESS;
}

void OneSided::queue(RemoteOp* op) {
  op->next = nullptr;
  (tail_ != nullptr ? tail_->next : head_) = op;
  tail_ = op;
}

// kFull: the operation has to wait; otherwise it proceeds.
Posted OneSided::post(RemoteOp* op) {
  Posted posted = Posted::kFull;
  const bool signals = op->signal != nullptr && op->bytes <= Endpoint::kInlineBytes;
  if (signals) {
    posted = post_signal(op);
  } else if (with_provider_.size() < kWithProviderMax) {
    Target target = op->remote->target;
    target.address += op->offset_bytes;
    const remote::Region* here = regions_.containing(op->data, op->bytes);
    fid_mr* local = here != nullptr ? static_cast<fid_mr*>(here->native) : nullptr;
    posted = is_get(*op) ? endpoint_->read(target, op->data, op->bytes, local, op)
                         : endpoint_->write(target, op->data, op->bytes, local, op);
  }
  if (posted == Posted::kUnderWay) {
    set_state(op, kRemoteWithProvider);
    with_provider_.push_back(op);
  } else if (posted == Posted::kComplete) {
    finish(op);
  } else if (posted == Posted::kFailed) {
    provider_reason_ = endpoint_->reason();
    fail(op, WEIR_ERROR_PEER_LOST);
  }
  return posted;
}

Posted OneSided::post_signal(RemoteOp* op) {
  remote::Signal signal;
  signal.token = self_->token_of(op->signal->target.peer);
  signal.sender = self_->rank;
  signal.word_region = op->signal->region;
  signal.word_registration = op->signal->registration;
  signal.word_offset_bytes = word_offset_of(*op);
  signal.value = op->value;
  if (op->bytes != 0) {
    signal.bytes = static_cast<uint32_t>(op->bytes);
    signal.region = op->remote->region;
    signal.registration = op->remote->registration;
    signal.offset_bytes = op->offset_bytes;
  }
  return endpoint_->send_signal(op->signal->target.peer, signal, op->data);
}

void OneSided::post_waiting() {
  while (RemoteOp* op = head_) {
    RemoteOp* next = op->next;
    if (post(op) == Posted::kFull) return;
    head_ = next;
    if (head_ == nullptr) tail_ = nullptr;
  }
}

void OneSided::release(RemoteOp* op) {
  --under_way_;
  for (Remote* remote : {op->remote, op->signal}) {
    if (remote != nullptr) let_go(remote);
  }
}

void OneSided::finish(RemoteOp* op) {
  release(op);
  op->state = kOpDone;
}

void OneSided::fail(RemoteOp* op, weir_result_t result) {
  const uint32_t rank = rank_of(*op);
  release(op);
  op->state = kRemoteFailed + static_cast<uint64_t>(result);
  op->remote = reinterpret_cast<Remote*>(uintptr_t{rank});
}

void OneSided::settle(const Completion& completion) {
  RemoteOp* op = completion.remote;
  const auto at = std::find(with_provider_.begin(), with_provider_.end(), op);
  if (at == with_provider_.end()) return;
  *at = with_provider_.back();
  with_provider_.pop_back();
  if (completion.error != 0) {
    provider_reason_ = endpoint_->reason();
    // A living peer's provider may refuse, when the memory is no longer registered.
    const bool refused = completion.error == FI_EACCES || completion.error == FI_EINVAL ||
                         completion.error == FI_EPERM || completion.error == FI_EKEYREJECTED;
    const bool ended = self_->ends_behind_error(rank_of(*op), !refused);
    fail(op, ended ? WEIR_ERROR_PEER_LOST : WEIR_ERROR_REFUSED);
  } else if (op->signal != nullptr) {
    // The bytes have arrived: now the signal is sent.
    op->bytes = 0;
    set_state(op, kRemoteWaits);
    queue(op);
  } else {
    finish(op);
  }
}

// Everything that it names is looked up here and checked; a message without the token is ignored.
void OneSided::hear(const unsigned char* message, uint64_t bytes) {
  const remote::Signal signal = remote::decode_signal(message);
  if (signal.token != self_->token_of(self_->rank) ||
      signal.bytes != bytes - remote::kSignalBytes) {
    return;
  }
  if (regions_.apply(signal, message + remote::kSignalBytes) || told_of_refusal_) return;
  told_of_refusal_ = true;
  self_->report.log(Report::kWarning, "a signal of rank " + text_of(signal.sender) +
                                          " for memory that rank " + text_of(self_->rank) +
                                          " has not registered, or has deregistered, was dropped");
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

weir_result_t OneSided::outcome(const RemoteOp& op) const {
  const auto rank = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(op.remote));
  const auto result = static_cast<weir_result_t>(op.state - kRemoteFailed);
  if (result == WEIR_ERROR_PEER_LOST) return lost(rank);
  return self_->report.fail(result, "the provider of rank " + text_of(rank) +
                                        " refused access to its memory: " + provider_reason_);
}

void OneSided::abandon(uint32_t peer) {
  for (size_t i = 0; i < with_provider_.size();) {
    RemoteOp* op = with_provider_[i];
    if (rank_of(*op) != peer) {
      ++i;
      continue;
    }
    endpoint_->forget(op);
    with_provider_[i] = with_provider_.back();
    with_provider_.pop_back();
    fail(op, WEIR_ERROR_PEER_LOST);
  }
  RemoteOp* waiting = head_;
  head_ = tail_ = nullptr;
  while (waiting != nullptr) {
    RemoteOp* op = waiting;
    waiting = op->next;
    if (rank_of(*op) == peer) {
      fail(op, WEIR_ERROR_PEER_LOST);
    } else {
      queue(op);
    }
  }
  endpoint_->forget_signals(peer);
}

}  // namespace weir::plugins::ofi
