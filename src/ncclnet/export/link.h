// SPDX-License-Identifier: Apache-2.0
// Link: one connection of NCCL, sender to receiver, as a communicator of two ranks over a Weir
// transport: rank 0 has listened and receives, rank 1 has connected and sends. A Weir message has
// the length of its receive; an NCCL message may be shorter than the posted one. So each NCCL
// message is sent as a head of fixed size, which contains a short message, followed for a longer
// one by a message of the length given in the head:
//
//   offset  bytes  field (integers little-endian)
//        0      8  bytes of the message
//        8     56  the message, where it has at most 56 bytes
//
// After it has been joined, nothing allocates, locks or logs unless something fails. One thread at
// a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/secret.h"
#include "core/control/host_control.h"
#include "core/control/network.h"
#include "ncclnet/abi.h"
#include "weir/plugin.h"

namespace weir::ncclnet {

class Link;

struct Request {
  enum class State : uint8_t { kFree, kQueued, kHead, kBody, kDone };
  static constexpr size_t kHeadBytes = 64;
  static constexpr size_t kInlineBytes = kHeadBytes - 8;

  Link* link = nullptr;
  State state = State::kFree;
  Request* next = nullptr;  // free ones, or receives in order of posting
  void* data = nullptr;
  uint64_t bytes = 0;  // as posted; the message's, once it is known
  weir_result_t head_result = WEIR_OK;
  weir_result_t body_result = WEIR_OK;
  weir_transport_op_t head_op{};
  weir_transport_op_t body_op{};
  unsigned char head[kHeadBytes] = {};
};

class Link {
 public:
  // NCCL may have 32 requests under way.
  static constexpr uint32_t kRequestCount = 64;

  // `network`: of two ranks, 0 receives; `ifname`: the transport's WEIR_IFNAME; "": as it is set.
  Link(const weir_transport_functions_t* functions, std::unique_ptr<control::Network> network,
       const Secret& secret, uint64_t id, bool receives, std::string ifname);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Opens the transport; its error texts are in text().
  weir_result_t open();
  weir_result_t address(unsigned char* out, size_t* bytes);
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);

  control::Network& network() const { return *network_; }

  // `*request` is null when too many requests are under way.
  Result isend(const void* data, uint64_t bytes, Request** request);
  Result irecv(void* data, uint64_t bytes, Request** request);
  // When the request is done, `*bytes` is the message's length, and the request is free again.
  Result test(Request* request, bool* done, uint64_t* bytes);

  bool receives() const { return receives_; }
  // The reason why the latest call failed. After a failure every call fails.
  const std::string& text() const { return text_; }

 private:
  Request* take_request();
  void give_back(Request* request);
  Result fail(weir_result_t result);
  Result advance_receives();
  Result take_head(Request* request);
  Result finish_body(Request* request);
  Result look_after_peer();
  bool settle(weir_result_t* result, weir_transport_op_t* op);

  static void host_error(void* context, const char* text);
  static void host_log(void* context, int level, const char* text);
  static const char* host_setting(void* context, const char* name);

  const weir_transport_functions_t& f_;
  const bool receives_;
  const std::string ifname_;
  const std::unique_ptr<control::Network> network_;
  Secret secret_;
  const uint64_t id_;
  control::HostControl control_;
  weir_host_t host_{};
  weir_transport_t* instance_ = nullptr;
  uint32_t peer_ = 0;
  std::string text_;
  Result failed_ = kSuccess;
  std::unique_ptr<Request[]> requests_;
  Request* free_ = nullptr;
  Request* first_ = nullptr;  // of the receives whose head has not come, in order
  Request* last_ = nullptr;
  uint32_t idle_count_ = 0;
};

// The corresponding NCCL result.
Result result_of(weir_result_t result);

}  // namespace weir::ncclnet
