// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/link.h"

#include <stdlib.h>
#include <string.h>

#include <utility>

#include "core/base/log.h"

namespace weir::ncclnet {
namespace {

// After this many calls of `test` without progress, the peer is checked.
constexpr uint32_t kIdleCountMax = 1024;
// Channel of the network.
constexpr uint8_t kTransportMessages = 0;

uint64_t length_in(const unsigned char* head) {
  uint64_t bytes = 0;
  for (size_t i = 8; i-- > 0;) bytes = bytes << 8 | head[i];
  return bytes;
}

void set_length(unsigned char* head, uint64_t bytes) {
  for (size_t i = 0; i < 8; ++i) head[i] = static_cast<unsigned char>(bytes >> (8 * i));
}

}  // namespace

Result result_of(weir_result_t result) {
  switch (result) {
    case WEIR_OK:
      return kSuccess;
    case WEIR_ERROR_PEER_LOST:
    case WEIR_ERROR_TIMEOUT:
    case WEIR_ERROR_REFUSED:
      return kRemoteError;
    case WEIR_ERROR_MISMATCH:
      return kInvalidUsage;
    case WEIR_ERROR_INVALID_ARGUMENT:
    case WEIR_ERROR_INVALID_USAGE:
    case WEIR_ERROR_INTERNAL:
      return kInternalError;
    default:
      return kSystemError;
  }
}

Link::Link(const weir_transport_functions_t* functions, std::unique_ptr<control::Network> network,
           const Secret& secret, uint64_t id, bool receives, std::string ifname)
    : f_(*functions),
      receives_(receives),
      ifname_(std::move(ifname)),
      network_(std::move(network)),
      secret_(secret),
      id_(id),
      control_(network_.get(), kTransportMessages,
               [this](const std::string& text) { text_ = text; }),
      peer_(receives ? 1 : 0),
      requests_(new Request[kRequestCount]) {
  host_ = {sizeof host_, this, host_error, host_log, host_setting};
  host_.control = control_.functions();
  for (uint32_t i = kRequestCount; i-- > 0;) {
    requests_[i].link = this;
    requests_[i].next = free_;
    free_ = &requests_[i];
  }
}

// Moves nothing more: the memory of open requests may have been freed.
Link::~Link() {
  if (instance_ != nullptr) f_.close(instance_);
  network_->leave();
}

weir_result_t Link::open() {
  const weir_transport_config_t config = {sizeof config,        receives_ ? 0u : 1u,  2,    id_,
                                          secret_.bytes.data(), secret_.bytes.size(), 4096, 0};
  return f_.open(f_.context, &host_, &config, &instance_);
}

weir_result_t Link::address(unsigned char* out, size_t* bytes) {
  return f_.address(instance_, out, bytes);
}

weir_result_t Link::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                            uint64_t deadline_ns) {
  return f_.connect(instance_, addresses, address_bytes, deadline_ns);
}

Request* Link::take_request() {
  Request* request = free_;
  if (request == nullptr) return nullptr;
  free_ = request->next;
  request->next = nullptr;
  request->head_op = {};
  request->body_op = {};
  request->body_result = WEIR_OK;
  return request;
}

void Link::give_back(Request* request) {
  request->state = Request::State::kFree;
  request->next = free_;
  free_ = request;
}

Result Link::fail(weir_result_t result) {
  failed_ = result_of(result);
  return failed_;
}

bool Link::settle(weir_result_t* result, weir_transport_op_t* op) {
  if (*result == WEIR_IN_PROGRESS) *result = f_.test(instance_, op);
  return *result != WEIR_IN_PROGRESS;
}

Result Link::isend(const void* data, uint64_t bytes, Request** out) {
  *out = nullptr;
  if (failed_ != kSuccess) return failed_;
  Request* request = take_request();
  if (request == nullptr) return kSuccess;
  set_length(request->head, bytes);
  const bool is_inline = bytes <= Request::kInlineBytes;
  if (is_inline && bytes != 0) memcpy(request->head + 8, data, bytes);
  request->bytes = bytes;
  request->state = Request::State::kBody;
  request->head_result =
      f_.send(instance_, peer_, 0, request->head, Request::kHeadBytes, &request->head_op);
  if (!is_inline && (request->head_result == WEIR_OK || request->head_result == WEIR_IN_PROGRESS)) {
    request->body_result = f_.send(instance_, peer_, 0, data, bytes, &request->body_op);
  }
  // A transport may delay a short message until it is tested, and NCCL may not test soon.
  (void)settle(&request->head_result, &request->head_op);
  for (const weir_result_t result : {request->head_result, request->body_result}) {
    if (result != WEIR_OK && result != WEIR_IN_PROGRESS) {
      give_back(request);
      return fail(result);
    }
  }
  *out = request;
  return kSuccess;
}

Result Link::irecv(void* data, uint64_t bytes, Request** out) {
  *out = nullptr;
  if (failed_ != kSuccess) return failed_;
  Request* request = take_request();
  if (request == nullptr) return kSuccess;
  request->data = data;
  request->bytes = bytes;
  request->state = Request::State::kQueued;
  (last_ != nullptr ? last_->next : first_) = request;
  last_ = request;
  *out = request;
  return advance_receives();
}

// One head is awaited at a time: only the head tells what follows it.
Result Link::advance_receives() {
  while (first_ != nullptr) {
    Request* request = first_;
    if (request->state == Request::State::kQueued) {
      request->state = Request::State::kHead;
      request->head_result =
          f_.recv(instance_, peer_, 0, request->head, Request::kHeadBytes, &request->head_op);
    }
    if (!settle(&request->head_result, &request->head_op)) return kSuccess;
    if (request->head_result != WEIR_OK) return fail(request->head_result);
    const Result taken = take_head(request);
    if (taken != kSuccess) return taken;
    first_ = request->next;
    if (first_ == nullptr) last_ = nullptr;
  }
  return kSuccess;
}

Result Link::take_head(Request* request) {
  const uint64_t bytes = length_in(request->head);
  if (bytes > request->bytes) {
    text_ = "the peer sent a message of " + std::to_string(bytes) +
            " bytes where a receive of at most " + std::to_string(request->bytes) + " was posted";
    return fail(WEIR_ERROR_MISMATCH);
  }
  request->bytes = bytes;
  request->state = Request::State::kBody;
  if (bytes > Request::kInlineBytes) {
    request->body_result = f_.recv(instance_, peer_, 0, request->data, bytes, &request->body_op);
  } else if (bytes != 0) {
    memcpy(request->data, request->head + 8, bytes);
  }
  return kSuccess;
}

// Messages that arrived before the failure are still delivered.
Result Link::test(Request* request, bool* done, uint64_t* bytes) {
  *done = false;
  if (failed_ == kSuccess && receives_) (void)advance_receives();
  if (request->state == Request::State::kBody) (void)finish_body(request);
  if (request->state == Request::State::kDone) {
    idle_count_ = 0;
    *done = true;
    *bytes = request->bytes;
    give_back(request);
    return kSuccess;
  }
  if (failed_ != kSuccess) return failed_;
  return ++idle_count_ < kIdleCountMax ? kSuccess : look_after_peer();
}

Result Link::finish_body(Request* request) {
  const auto is_open = [](weir_result_t result) { return result == WEIR_IN_PROGRESS; };
  if (failed_ != kSuccess && (is_open(request->head_result) || is_open(request->body_result))) {
    return failed_;
  }
  const bool head = settle(&request->head_result, &request->head_op);
  if (head && request->head_result != WEIR_OK) return fail(request->head_result);
  const bool body = settle(&request->body_result, &request->body_op);
  if (body && request->body_result != WEIR_OK) return fail(request->body_result);
  if (head && body) request->state = Request::State::kDone;
  return kSuccess;
}

// The death of a peer goes unnoticed where it does not cut the transport's own connection.
Result Link::look_after_peer() {
  idle_count_ = 0;
  const weir_result_t moved = f_.progress(instance_);
  if (moved != WEIR_OK) return fail(moved);
  if ((f_.caps.bits & WEIR_CAP_PEER_FAILURE) == 0) return kSuccess;
  const weir_result_t alive = f_.peer_alive(instance_, peer_);
  return alive == WEIR_OK ? kSuccess : fail(alive);
}

void Link::host_error(void* context, const char* text) {
  static_cast<Link*>(context)->text_ = text;
}

void Link::host_log(void*, int level, const char* text) {
  weir::log(static_cast<weir::LogLevel>(level), text);
}

const char* Link::host_setting(void* context, const char* name) {
  const Link& self = *static_cast<const Link*>(context);
  if (!self.ifname_.empty() && strcmp(name, "WEIR_IFNAME") == 0) return self.ifname_.c_str();
  return getenv(name);
}

}  // namespace weir::ncclnet
