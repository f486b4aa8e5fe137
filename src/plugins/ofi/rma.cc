// SPDX-License-Identifier: Apache-2.0
// The endpoint's one-sided operations, and the messages of signals.
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sched.h>
#include <string.h>

#include <algorithm>

#include "net/auth.h"
#include "plugins/message/control.h"
#include "plugins/ofi/endpoint.h"
#include "plugins/ofi/one_sided.h"

namespace weir::plugins::ofi {
namespace {

constexpr size_t kSignalsOut = 32;
constexpr size_t kSignalsIn = 64;
constexpr uint64_t kSignalCellBytes = remote::kSignalBytes + Endpoint::kInlineBytes;
constexpr int kKeyTries = 8;

}  // namespace

fid_mr* Endpoint::expose(void* base, uint64_t bytes, uint64_t* key, uint64_t* address) {
  exposed_.reserve(exposed_.size() + 1);
  const size_t key_bytes = info_->domain_attr->mr_key_size;
  fid_mr* region = nullptr;
  // A key that cannot be guessed, as far as the provider lets us choose it.
  for (int i = 0; i < kKeyTries && region == nullptr; ++i) {
    uint64_t wanted = 0;
    if (!net::fill_random(&wanted, sizeof wanted)) return nullptr;
    if (key_bytes < sizeof wanted) wanted &= (uint64_t{1} << 8 * key_bytes) - 1;
    region =
        register_memory(base, bytes, FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, wanted);
  }
  if (region == nullptr) return nullptr;
  *key = fi_mr_key(region);
  const bool by_address = (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  *address = by_address ? reinterpret_cast<uint64_t>(base) : 0;
  exposed_.push_back(region);
  return region;
}

void Endpoint::hide(fid_mr* region) {
  std::erase(exposed_, region);
  (void)fi_close(&region->fid);
}

Posted Endpoint::access_remote(const Target& target, const void* data, uint64_t bytes,
                               fid_mr* local, bool is_read, RemoteOp* op) {
  Request* request = remotes_.take();
  if (request == nullptr) return Posted::kFull;
  void* descriptor = nullptr;
  if (registers_) {
    if (local == nullptr) {
      request->region = register_memory(data, bytes, is_read ? FI_READ : FI_WRITE, next_key_++);
      if (request->region == nullptr) {
        remotes_.give_back(request);
        return Posted::kFailed;
      }
      local = request->region;
    }
    descriptor = fi_mr_desc(local);
  }
  request->remote = op;
  iovec here = {const_cast<void*>(data), bytes};
  fi_rma_iov there = {target.address, bytes, target.key};
  fi_msg_rma message = {};
  message.msg_iov = &here;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = peers_[target.peer];
  message.rma_iov = &there;
  message.rma_iov_count = 1;
  message.context = &request->context;
  return outcome(is_read ? fi_readmsg(endpoint_, &message, FI_COMPLETION)
                         : fi_writemsg(endpoint_, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE),
                 &remotes_, request);
}

Posted Endpoint::write(const Target& target, const void* data, uint64_t bytes, fid_mr* local,
                       RemoteOp* op) {
  return access_remote(target, data, bytes, local, false, op);
}

Posted Endpoint::read(const Target& target, void* data, uint64_t bytes, fid_mr* local,
                      RemoteOp* op) {
  return access_remote(target, data, bytes, local, true, op);
}

void Endpoint::forget(RemoteOp* op) {
  for (Request& request : remotes_.requests) {
    if (!request.busy || request.remote != op) continue;
    request.remote = nullptr;
    // Its completion gives the request back, whether it can be cancelled or not.
    (void)fi_cancel(&endpoint_->fid, &request.context);
  }
}

bool Endpoint::end_operations(uint64_t until_ns) {
  // A provider that progresses alone need not give back a receive that it has cancelled.
  const bool waits_for_receives = !progresses_alone();
  for (Request& request : recvs_.requests) {
    if (!request.busy || !waits_for_receives) continue;
    request.op = nullptr;
    (void)fi_cancel(&endpoint_->fid, &request.context);
  }
  const auto is_busy = [](const Pool& pool) {
    return std::any_of(pool.requests.begin(), pool.requests.end(),
                       [](const Request& request) { return request.busy; });
  };
  const auto busy = [&] { return is_busy(remotes_) || (waits_for_receives && is_busy(recvs_)); };
  Completion completions[kPollMax];
  while (busy()) {
    if (message::monotonic_ns() >= until_ns) return false;
    const int told = poll(completions);
    if (told < 0) return false;
    if (told == 0) sched_yield();
  }
  return true;
}

bool Endpoint::hear_signals(OneSided* listener) {
  if (listener_ != nullptr) return true;
  signals_in_.make(kSignalsIn, false, kSignalCellBytes);
  if (registers_ && !register_cells(&signals_in_, FI_RECV)) return false;
  listener_ = listener;
  unposted_.reserve(kSignalsIn);
  while (Request* request = signals_in_.take()) {
    if (!post_signal_receive(request)) unposted_.push_back(request);
  }
  return true;
}

// False: later.
bool Endpoint::post_signal_receive(Request* request) {
  void* descriptor = registers_ ? fi_mr_desc(signals_in_.region) : nullptr;
  return fi_recv(endpoint_, request->cell, kSignalCellBytes, descriptor, FI_ADDR_UNSPEC,
                 &request->context) == 0;
}

bool Endpoint::add_signal_pool(size_t count) {
  auto pool = std::make_unique<Pool>();
  pool->make(count, true, kSignalCellBytes);
  if (registers_ && !register_cells(pool.get(), FI_SEND)) return false;
  signals_out_.push_back(std::move(pool));
  return true;
}

bool Endpoint::prepare_signals() { return !signals_out_.empty() || add_signal_pool(kSignalsOut); }

Posted Endpoint::send_signal(uint32_t peer, const remote::Signal& signal, const void* payload) {
  Request* request = nullptr;
  for (const auto& pool : signals_out_) {
    if (request == nullptr) request = pool->take();
  }
  if (request == nullptr) return Posted::kFull;
  remote::encode(signal, request->cell);
  if (signal.bytes != 0) memcpy(request->cell + remote::kSignalBytes, payload, signal.bytes);
  request->peer = peer;
  void* descriptor = registers_ ? fi_mr_desc(request->home->region) : nullptr;
  iovec part = {request->cell, remote::kSignalBytes + signal.bytes};
  fi_msg message = {};
  message.msg_iov = &part;
  message.desc = &descriptor;
  message.iov_count = 1;
  message.addr = peers_[peer];
  message.context = &request->context;
  // Tells a rank that leaves when it may.
  const ssize_t result = fi_sendmsg(endpoint_, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
  if (result == 0) {
    ++signals_under_way_;
    return Posted::kComplete;
  }
  request->home->give_back(request);
  if (result == -FI_EAGAIN) return Posted::kFull;
  fail("fi_sendmsg", result);
  return Posted::kFailed;
}

void Endpoint::forget_signals(uint32_t peer) {
  size_t stuck = 0;
  for (const auto& pool : signals_out_) {
    for (Request& request : pool->requests) {
      if (!request.busy || request.peer != peer) continue;
      request.peer = UINT32_MAX;
      --signals_under_way_;
      ++stuck;
    }
  }
  if (stuck != 0) (void)add_signal_pool(stuck);
}

// True: the request was one of a signal. `bytes`: of a message that has arrived, 0: it has not.
bool Endpoint::settle_signal(Request* request, uint64_t bytes) {
  if (request->home == &signals_in_) {
    if (bytes >= remote::kSignalBytes) listener_->hear(request->cell, bytes);
    if (!post_signal_receive(request)) unposted_.push_back(request);
    return true;
  }
  const bool is_out = std::any_of(signals_out_.begin(), signals_out_.end(),
                                  [&](const auto& pool) { return pool.get() == request->home; });
  if (!is_out) return false;
  if (request->peer != UINT32_MAX) --signals_under_way_;
  request->home->give_back(request);
  return true;
}

}  // namespace weir::plugins::ofi
