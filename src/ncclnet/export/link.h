// SPDX-License-Identifier: Apache-2.0
// Link: one connection of NCCL's, sender to receiver, which is a communicator of two ranks of a Weir transport:
// rank 0 has listened and receives, rank 1 has connected and sends. Weir's messages meet receives of their own
// length, NCCL's may be shorter than what was posted; so each is a head of fixed size, with short messages in
// it, and, for others, a message of the length that the head tells:
//
//   offset  bytes  field (integers little-endian)
//        0      8  bytes of the message
//        8     56  the message, where it has at most 56 bytes
//
// After it has been joined nothing allocates, locks or logs where nothing fails. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ncclnet/abi.h"
#include "net/auth.h"
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
  uint64_t bytes = 0;  // posted; of the message, once it is known
  weir_result_t head_result = WEIR_OK;
  weir_result_t body_result = WEIR_OK;
  weir_transport_op_t head_op{};
  weir_transport_op_t body_op{};
  unsigned char head[kHeadBytes] = {};
};

class Link {
 public:
  // NCCL may have 32 under way.
  static constexpr uint32_t kRequestCount = 64;

  Link(const weir_transport_functions_t* functions, bool receives, std::string ifname);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Of the transport; its texts are in text().
  weir_result_t open(uint64_t id, const net::Mac& secret);
  weir_result_t address(unsigned char* out, size_t* bytes);
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);

  // Null in `*request`: too many are under way.
  Result isend(const void* data, uint64_t bytes, Request** request);
  Result irecv(void* data, uint64_t bytes, Request** request);
  // `*bytes` of a done request is the message's length; then it is free again.
  Result test(Request* request, bool* done, uint64_t* bytes);

  bool receives() const { return receives_; }
  // Why the latest call failed. Once something has failed everything fails.
  const std::string& text() const { return text_; }

 private:
  Request* take_request();
  void give_back(Request* request);
  Result fail(weir_result_t result);
  Result advance_receives();
  Result take_head(Request* request);
  Result look_after_peer();
  bool settle(weir_result_t* result, weir_transport_op_t* op);

  static void host_error(void* context, const char* text);
  static void host_log(void* context, int level, const char* text);
  static const char* host_setting(void* context, const char* name);

  const weir_transport_functions_t& f_;
  const bool receives_;
  const std::string ifname_;
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

// What NCCL is to think of it.
Result result_of(weir_result_t result);

}  // namespace weir::ncclnet
