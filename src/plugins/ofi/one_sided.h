// SPDX-License-Identifier: Apache-2.0
// OneSided: put, get and put_signal of one instance. What the provider does not take at once waits
// here, in order of posting; operations are queued through their own words. A put is one write
// whose delivery the provider reports; a put_signal of up to Endpoint::kInlineBytes is one message
// with the bytes in it, a longer one a write and, when that is complete, a message. The target's
// own thread adds to the word. One thread at a time; only registering and opening allocate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "net/auth.h"
#include "plugins/ofi/endpoint.h"
#include "plugins/remote/key.h"
#include "plugins/remote/regions.h"

namespace weir::plugins::ofi {

class Instance;

// Memory of a peer.
struct Remote {
  Target target{};
  uint64_t bytes = 0;
  uint32_t region = 0;
  uint64_t registration = 0;
  uint32_t alignment_bytes = 0;  // the first byte's address modulo 8
  uint32_t under_way = 0;        // operations
  bool closed = false;           // by the caller
};

// Meaning of weir_transport_op_t::word of a one-sided operation.
struct RemoteOp {
  uint64_t state;  // as of Op; while it is under way kRemote… and above it the word's offset
  RemoteOp* next;  // in the queue of those that wait
  void* data;      // only read, but by a get
  uint64_t bytes;  // 0 once they have arrived and the signal has not
  uint64_t offset_bytes;
  Remote* remote;  // of a failed one its rank
  Remote* signal;  // null but for put_signal
  uint64_t value;
};
static_assert(sizeof(RemoteOp) == sizeof(weir_transport_op_t::word));
// Above all states of Op.
inline constexpr uint64_t kRemoteWaits = 0x80;
inline constexpr uint64_t kRemoteWithProvider = 0x81;
inline constexpr uint64_t kRemoteGet = 0x02;     // besides
inline constexpr uint64_t kRemoteFailed = 0xc0;  // + weir_result_t
inline constexpr uint64_t kRemoteStateMask = 0xff;
inline constexpr uint32_t kRemoteStateBits = 8;
inline bool is_under_way(const RemoteOp& op) {
  const uint64_t state = op.state & kRemoteStateMask;
  return state >= kRemoteWaits && state < kRemoteFailed;
}

class OneSided {
 public:
  using Region = remote::Region;
  using Remote = ofi::Remote;
  using Op = RemoteOp;

  static constexpr size_t kWithProviderMax = 128;

  void attach(Instance* self, Endpoint* endpoint, const net::Mac& proof);

  weir_result_t memory_register(void* base, uint64_t bytes, remote::Region** region);
  weir_result_t memory_key(const remote::Region& region, unsigned char* key, size_t* bytes) const;
  void memory_deregister(remote::Region* region);
  weir_result_t remote_open(uint32_t peer, const unsigned char* key, size_t key_bytes,
                            Remote** remote);
  void remote_close(Remote* remote);

  weir_result_t access(Remote* remote, uint64_t offset_bytes, void* data, uint64_t bytes,
                       bool is_get, RemoteOp* op);
  weir_result_t put_signal(Remote* remote, uint64_t offset_bytes, const void* data, uint64_t bytes,
                           Remote* signal, uint64_t word_offset_bytes, uint64_t value,
                           RemoteOp* op);
  weir_result_t signal_read(const remote::Region& region, uint64_t offset_bytes,
                            uint64_t* value) const;
  // How a failed operation ended, reported to the host.
  weir_result_t outcome(const RemoteOp& op) const;

  // Gives the provider what waits.
  void drive() {
    if (head_ != nullptr) [[unlikely]]
      post_waiting();
  }
  // From the endpoint.
  void settle(const Completion& completion);
  void hear(const unsigned char* message, uint64_t bytes);
  // The peer has ended: its operations fail.
  void abandon(uint32_t peer);
  bool idle() const { return under_way_ == 0; }

 private:
  weir_result_t check(const Remote* remote, uint64_t offset_bytes, uint64_t bytes,
                      const char* what) const;
  weir_result_t lost(uint32_t rank) const;
  weir_result_t begin(RemoteOp* op);
  Posted post(RemoteOp* op);
  Posted post_signal(RemoteOp* op);
  void queue(RemoteOp* op);
  void post_waiting();
  void finish(RemoteOp* op);
  void fail(RemoteOp* op, weir_result_t result);
  void release(RemoteOp* op);
  void let_go(Remote* remote);

  Instance* self_ = nullptr;
  Endpoint* endpoint_ = nullptr;
  net::Mac proof_{};
  remote::Regions regions_;
  std::vector<std::unique_ptr<Remote>> remotes_;
  RemoteOp* head_ = nullptr;  // of those that wait
  RemoteOp* tail_ = nullptr;
  std::vector<RemoteOp*> with_provider_;
  uint32_t under_way_ = 0;
  std::string provider_reason_;  // of the latest failure
  bool told_of_refusal_ = false;
};

}  // namespace weir::plugins::ofi
