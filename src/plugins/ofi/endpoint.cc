// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <string.h>

#include <algorithm>
#include <bit>

#include "plugins/ofi/one_sided.h"
#include "plugins/ofi/wire.h"

namespace weir::plugins::ofi {
namespace {

constexpr size_t kRequestCountMin = 512;
constexpr size_t kRequestsPerRank = 16;
constexpr size_t kRemoteCompletionsMax = 512;
// Larger ones are faster sent than copied.

template <typename Object>
void end(Object** object) {
  if (*object != nullptr) (void)fi_close(&(*object)->fid);
  *object = nullptr;
}

}  // namespace

void Endpoint::Pool::make(size_t count, bool is_send, uint64_t cell_bytes) {
  requests.resize(count);
  memory_bytes = count * cell_bytes;
  if (memory_bytes != 0) memory.reset(new unsigned char[memory_bytes]);
  for (size_t i = count; i-- > 0;) {
    Request& request = requests[i];
    request = {};
    request.is_send = is_send;
    request.home = this;
    request.cell = cell_bytes != 0 ? memory.get() + i * cell_bytes : nullptr;
    request.next = free;
    free = &request;
  }
}

void Endpoint::Pool::give_back(Request* request) {
  request->op = nullptr;
  request->remote = nullptr;
  request->uses_cell = false;
  request->busy = false;
  request->next = free;
  free = request;
}

bool Endpoint::Pool::owns(const void* context) const {
  const auto* at = static_cast<const Request*>(context);
  return !requests.empty() && at >= requests.data() && at < requests.data() + requests.size();
}

Endpoint::~Endpoint() {
  // First the objects that use the others; a provider may refuse to close what is still in use.
  end(&endpoint_);
  for (fid_mr* region : exposed_) end(&region);
  for (fid_mr* region : placed_) end(&region);
  for (Pool* pool : {&sends_, &recvs_, &remotes_, &signals_in_}) {
    for (Request& request : pool->requests) end(&request.region);
    end(&pool->region);
  }
  for (const auto& pool : signals_out_) end(&pool->region);
  end(&addresses_);
  end(&queue_);
  end(&domain_);
  end(&fabric_);
}

bool Endpoint::fail(const char* what, int64_t error) {
  reason_ = "provider " + provider_ + ", " + what + ": " + library_.reason(error);
  return false;
}

bool Endpoint::open(Info info, uint32_t rank_count, bool registers) {
  info_ = std::move(info);
  provider_ = info_->fabric_attr->prov_name;
  peers_.assign(rank_count, FI_ADDR_UNSPEC);
  registers_ = registers || (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
  // Leading zeros of the format are bits that the provider keeps for itself.
  const uint64_t format = info_->ep_attr->mem_tag_format;
  const auto tag_bits = static_cast<uint32_t>(format == 0 ? 64 : std::bit_width(format));
  if (tag_bits < kTagFixedBits) {
    reason_ = "provider " + provider_ + " has tags of " + std::to_string(tag_bits) + " bits, " +
              std::to_string(kTagFixedBits) + " are needed";
    return false;
  }
  // Few widths, so that devices of slightly different ones agree.
  const uint32_t token_bits = tag_bits >= 62 ? 30 : tag_bits >= 48 ? 16 : 0;
  token_mask_ = (uint64_t{1} << token_bits) - 1;
  // Requested to learn whether it is supported; a message is complete without it.
  const bool delivers = (info_->tx_attr->op_flags & FI_DELIVERY_COMPLETE) != 0;
  info_->tx_attr->op_flags = 0;
  if ((info_->caps & FI_RMA) == 0 || (info_->caps & FI_MSG) == 0 || !delivers) {
    remote_gap_ = "provider " + provider_ +
                  " has no one-sided operations that report their delivery (FI_RMA with "
                  "FI_DELIVERY_COMPLETE)";
  }
  if (provider_.ends_with(";ofi_rxd")) {
    remote_gap_ = "provider " + provider_ +
                  ": libfabric 1.17 does not complete all one-sided operations under load, and "
                  "crashes when a peer has left";
  }
  if (!open_objects()) return false;
  const size_t count = std::max(kRequestCountMin, rank_count * kRequestsPerRank);
  sends_.make(count, true, registers_ ? kCellBytes : 0);
  recvs_.make(count, false, registers_ ? kCellBytes : 0);
  if (remote_gap_.empty()) remotes_.make(OneSided::kWithProviderMax, true, 0);
  if (registers_ && (!register_cells(&sends_, FI_SEND) || !register_cells(&recvs_, FI_RECV))) {
    return false;
  }
  return true;
}

bool Endpoint::open_objects() {
  const SignalHandlersKept kept;
  int error = library_.fabric(info_->fabric_attr, &fabric_, nullptr);
  if (error != 0) return fail("fi_fabric", error);
  error = fi_domain(fabric_, info_.get(), &domain_, nullptr);
  if (error != 0) return fail("fi_domain", error);

  const size_t count = std::max(kRequestCountMin, peers_.size() * kRequestsPerRank);
  fi_cq_attr queue_attr{};
  queue_attr.format = FI_CQ_FORMAT_MSG;
  queue_attr.size = 2 * count + kRemoteCompletionsMax;
  queue_attr.wait_obj = FI_WAIT_NONE;
  error = fi_cq_open(domain_, &queue_attr, &queue_, nullptr);
  if (error != 0) return fail("fi_cq_open", error);

  fi_av_attr av_attr{};
  av_attr.type = info_->domain_attr->av_type;
  av_attr.count = peers_.size();
  error = fi_av_open(domain_, &av_attr, &addresses_, nullptr);
  if (error != 0) return fail("fi_av_open", error);

  error = fi_endpoint(domain_, info_.get(), &endpoint_, nullptr);
  if (error != 0) return fail("fi_endpoint", error);
  error = fi_ep_bind(endpoint_, &addresses_->fid, 0);
  if (error == 0) error = fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV);
  if (error != 0) return fail("fi_ep_bind", error);
  error = fi_enable(endpoint_);
  if (error != 0) return fail("fi_enable", error);

  name_.assign(kNameBytesMax, 0);
  size_t bytes = name_.size();
  error = fi_getname(&endpoint_->fid, name_.data(), &bytes);
  if (error != 0 || bytes == 0 || bytes > kNameBytesMax) {
    return fail("fi_getname", error != 0 ? error : -FI_ETOOSMALL);
  }
  name_.resize(bytes);
  return true;
}

bool Endpoint::insert(uint32_t peer, const std::vector<unsigned char>& name) {
  const int inserted = fi_av_insert(addresses_, name.data(), 1, &peers_[peer], 0, nullptr);
  if (inserted == 1 && peers_[peer] != FI_ADDR_NOTAVAIL) return true;
  return fail("fi_av_insert", inserted < 0 ? inserted : -FI_EINVAL);
}

// `key` is ignored where the provider chooses keys; else no two may be the same.
fid_mr* Endpoint::register_memory(const void* data, uint64_t bytes, uint64_t access, uint64_t key,
                                  int device) {
  fid_mr* region = nullptr;
  int error = 0;
  if (device == kHost) {
    error = fi_mr_reg(domain_, data, bytes, access, 0, key, 0, &region, nullptr);
  } else {
    const iovec memory = {const_cast<void*>(data), bytes};
    fi_mr_attr attr{};
    attr.mr_iov = &memory;
    attr.iov_count = 1;
    attr.access = access;
    attr.requested_key = key;
    attr.iface = FI_HMEM_CUDA;
    attr.device.cuda = device;
    error = fi_mr_regattr(domain_, &attr, 0, &region);
  }
  if (error == 0 && (info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    error = fi_mr_bind(region, &endpoint_->fid, 0);
    if (error == 0) error = fi_mr_enable(region);
  }
  if (error == 0) return region;
  end(&region);
  fail(device == kHost ? "fi_mr_reg" : "fi_mr_regattr of memory of a CUDA device", error);
  return nullptr;
}

bool Endpoint::place(Op* op, int device) {
  op->region = nullptr;
  const bool wants_it = registers_ || (info_->domain_attr->mr_mode & FI_MR_HMEM) != 0;
  if (!wants_it || op->bytes == 0) return true;
  placed_.reserve(placed_.size() + 1);
  op->region = register_memory(op->data, op->bytes, op->is_send != 0 ? FI_SEND : FI_RECV,
                               next_key_++, device);
  if (op->region == nullptr) return false;
  placed_.push_back(op->region);
  return true;
}

void Endpoint::displace(Op* op) {
  if (op->region == nullptr) return;
  std::erase(placed_, op->region);
  end(&op->region);
}

// An operation that the provider has taken keeps its registration until it is done.
Posted Endpoint::keep(Posted posted, Request* request, Op* op) {
  if (posted == Posted::kUnderWay && op->region != nullptr) [[unlikely]] {
    std::erase(placed_, op->region);
    request->region = op->region;
    op->region = nullptr;
  }
  return posted;
}

bool Endpoint::register_cells(Pool* pool, uint64_t access) {
  pool->region = register_memory(pool->memory.get(), pool->memory_bytes, access, next_key_++);
  return pool->region != nullptr;
}

// Registers the memory with the provider where that requires it.
bool Endpoint::describe(Request* request, const void* data, uint64_t bytes, void** descriptor) {
  *descriptor = nullptr;
  if (!registers_ || bytes == 0) return true;
  Pool& pool = request->is_send ? sends_ : recvs_;
  if (!request->uses_cell) {
    request->region =
        register_memory(data, bytes, request->is_send ? FI_SEND : FI_RECV, next_key_++);
    if (request->region == nullptr) return false;
  }
  *descriptor = fi_mr_desc(request->uses_cell ? pool.region : request->region);
  return true;
}

Posted Endpoint::outcome(ssize_t result, Pool* pool, Request* request) {
  if (result == 0)
    return request->op != nullptr || request->remote != nullptr ? Posted::kUnderWay
                                                                : Posted::kComplete;
  end(&request->region);
  pool->give_back(request);
  if (result == -FI_EAGAIN) return Posted::kFull;
  fail(pool == &sends_ ? "fi_tsend" : pool == &recvs_ ? "fi_trecv" : "fi_writemsg", result);
  return Posted::kFailed;
}

Posted Endpoint::send(uint32_t peer, uint64_t tag, Op* op) {
  static const unsigned char kNothing = 0;
  const unsigned char* data = op->bytes != 0 ? op->data : &kNothing;
  Request* request = sends_.take();
  if (request == nullptr) return Posted::kFull;
  request->uses_cell = request->cell != nullptr && op->bytes <= kCellBytes && op->region == nullptr;
  if (request->uses_cell) {
    memcpy(request->cell, data, op->bytes);
    data = request->cell;
  }
  request->op = op;
  void* descriptor = nullptr;
  if (op->region != nullptr) {
    descriptor = fi_mr_desc(op->region);
  } else if (!describe(request, data, op->bytes, &descriptor)) {
    sends_.give_back(request);
    return Posted::kFailed;
  }
  return keep(outcome(fi_tsend(endpoint_, data, op->bytes, descriptor, peers_[peer], tag,
                               &request->context),
                      &sends_, request),
              request, op);
}

Posted Endpoint::recv(uint64_t tag, Op* op) {
  static unsigned char nothing = 0;
  Request* request = recvs_.take();
  if (request == nullptr) return Posted::kFull;
  request->op = op;
  unsigned char* data = op->bytes != 0 ? op->data : &nothing;
  request->uses_cell = request->cell != nullptr && op->bytes <= kCellBytes && op->region == nullptr;
  if (request->uses_cell) data = request->cell;
  void* descriptor = nullptr;
  if (op->region != nullptr) {
    descriptor = fi_mr_desc(op->region);
  } else if (!describe(request, data, op->bytes, &descriptor)) {
    recvs_.give_back(request);
    return Posted::kFailed;
  }
  return keep(outcome(fi_trecv(endpoint_, data, op->bytes, descriptor, FI_ADDR_UNSPEC, tag, 0,
                               &request->context),
                      &recvs_, request),
              request, op);
}

void Endpoint::forget(Op* op) {
  Pool& pool = op->is_send != 0 ? sends_ : recvs_;
  for (Request& request : pool.requests) {
    if (!request.busy || request.op != op) continue;
    request.op = nullptr;
    request.forgotten = true;
    ++forgotten_count_;
    // Its completion gives the request back, whether it can be cancelled or not.
    (void)fi_cancel(&endpoint_->fid, &request.context);
    return;
  }
}

void Endpoint::finish(Request* request) {
  end(&request->region);
  if (request->forgotten) --forgotten_count_;
  request->forgotten = false;
  request->home->give_back(request);
}

// Null: it is not ours.
Endpoint::Request* Endpoint::request_of(void* context) {
  bool ours = false;
  for (const Pool* pool : {&sends_, &recvs_, &remotes_, &signals_in_}) {
    ours = ours || pool->owns(context);
  }
  for (const auto& pool : signals_out_) ours = ours || pool->owns(context);
  return ours ? static_cast<Request*>(context) : nullptr;
}

int Endpoint::poll(Completion* completions) {
  if (!unposted_.empty()) [[unlikely]] {
    std::erase_if(unposted_, [&](Request* request) { return post_signal_receive(request); });
  }
  fi_cq_msg_entry entries[kPollMax];
  const ssize_t count = fi_cq_read(queue_, entries, kPollMax);
  if (count == -FI_EAGAIN) return 0;
  if (count == -FI_EAVAIL) return read_error(completions);
  if (count < 0) {
    fail("fi_cq_read", count);
    return static_cast<int>(count);
  }
  int told = 0;
  for (ssize_t i = 0; i < count; ++i) {
    Request* request = request_of(entries[i].op_context);
    if (request == nullptr || settle_signal(request, entries[i].len)) continue;
    if (request->remote != nullptr) completions[told++] = {nullptr, request->remote, 0, true, 0};
    if (Op* op = request->op; op != nullptr) {
      if (request->uses_cell && !request->is_send) {
        // A message without bytes may have no buffer.
        const uint64_t bytes = std::min<uint64_t>(entries[i].len, op->bytes);
        if (bytes > 0) memcpy(op->data, request->cell, bytes);
      }
      Completion& completion = completions[told++];
      completion.op = op;
      completion.remote = nullptr;
      completion.bytes = entries[i].len;
      completion.bytes_known = true;
      completion.error = 0;
    }
    finish(request);
  }
  return told;
}

int Endpoint::read_error(Completion* completion) {
  fi_cq_err_entry entry{};
  const ssize_t count = fi_cq_readerr(queue_, &entry, 0);
  if (count == -FI_EAGAIN || count == 0) return 0;
  if (count < 0) {
    fail("fi_cq_readerr", count);
    return static_cast<int>(count);
  }
  Request* request = request_of(entry.op_context);
  if (request == nullptr || settle_signal(request, 0)) return 0;
  Op* op = request->op;
  RemoteOp* remote = request->remote;
  finish(request);
  if (op == nullptr && remote == nullptr) return 0;
  completion->op = op;
  completion->remote = remote;
  completion->error = entry.err;
  completion->bytes = (op != nullptr ? op->bytes : 0) + entry.olen;
  completion->bytes_known = entry.olen != 0;
  if (entry.err != FI_ETRUNC) {
    char text[128] = "";
    const char* told = fi_cq_strerror(queue_, entry.prov_errno, entry.err_data, text, sizeof text);
    reason_ = library_.reason(entry.err);
    if (told != nullptr && *told != 0 && reason_ != told) reason_ += std::string(" (") + told + ")";
  }
  return 1;
}

}  // namespace weir::plugins::ofi
