// SPDX-License-Identifier: Apache-2.0
// Network: a UCX context with one worker, configured by UCX_* variables. A request of its worker
// begins with room for one pointer, which is null at first. Making and ending one takes a lock of
// the process, because UCX reads its settings and loads its parts then; all else belongs to one
// thread at a time.
//
// When UCX says that a message is sent (1.13.1):
//   - over shared memory it is in the receiver's queue, which is the receiver's memory, or, where
//     the receiver copies it itself, the receiver has it;
//   - over InfiniBand the card has it;
//   - over tcp a message that UCX has copied may still be with UCX, since the socket has taken only
//     a part of it, and leaves during later calls. One that is sent from where it is ("zcopy") is
//     sent when the kernel has all of it. A flush is no way out: over tcp it waits for an answer of
//     the receiver. So UCX_ZCOPY_THRESH is 0 here wherever tcp is the only network, whatever the
//     environment says: UCX then copies none.
// So a message that is sent arrives without a further call of its rank. This does not hold where
// UCX has InfiniBand or RoCE, too, and takes tcp for a pair of ranks; UCX_ZCOPY_THRESH=0 would
// ensure it.
//
// Room for messages that the receiver has not taken, because it makes no call:
//   - over shared memory the receiver's queue, which all ranks of the host fill and in which the
//     room of what was taken is given back by halves: of n places n / 2 + 1 are sure. UCX makes 64;
//     queue_places makes that the credit of all lanes of one other rank, or of two, for sure fits
//     at once. UCX_SYSV_FIFO_SIZE and the like in the environment are left alone.
//   - over tcp the buffers of the two sockets, 4 MB as Linux sets them.
//
// Long messages over tcp. Where an endpoint reports errors UCX sends them in active messages of at
// most one segment, which the receiver reads into a buffer of twice that and copies. With UCX's 64
// KiB the processor spends more on that than on the bytes; tcp_segment_bytes is from where on it
// does not. An endpoint has a buffer only while a part of a message has come; UCX allocates eight
// at a time. Nothing in UCX checks that a segment fits into the receiver's buffer, so ranks tell
// each other theirs before they make endpoints. UCX_TCP_RX_SEG_SIZE in the environment is left
// alone. Unexpected messages go into pieces of up to 64 KiB as before.
#pragma once

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ucx/quiet.h"

namespace weir::plugins::ucx {

// Of a rank's queue in shared memory, the same on all ranks.
uint32_t queue_places(uint32_t rank_count);

// Of UCX's tcp, the same on all ranks: as long as pays, but all buffers of a rank together take no
// more than kTcpBuffersBytesMax, or what UCX's own segments would take.
inline constexpr uint64_t kTcpSegmentBytesMax = uint64_t{768} << 10;
inline constexpr uint64_t kTcpSegmentBytesMin = uint64_t{64} << 10;  // UCX's own
inline constexpr uint64_t kTcpBuffersBytesMax = uint64_t{16} << 20;
constexpr uint64_t tcp_segment_bytes(uint32_t rank_count) {
  const uint64_t share = kTcpBuffersBytesMax / 2 / std::max(rank_count, 2u);
  return std::clamp(share / 4096 * 4096, kTcpSegmentBytesMin, kTcpSegmentBytesMax);
}
static_assert(tcp_segment_bytes(2) == kTcpSegmentBytesMax);
static_assert(tcp_segment_bytes(64) * 2 * 63 <= kTcpBuffersBytesMax);
static_assert(tcp_segment_bytes(1024) == kTcpSegmentBytesMin);

class Network {
 public:
  Network() = default;
  // Ends all endpoints, too.
  ~Network() { close(); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // "" or what does not work. `cards`: the only cards that are used, unless UCX_NET_DEVICES is set
  // (devices.h).
  std::string open(uint32_t rank_count, const std::vector<std::string>& cards = {});
  void close();
  // In a forked child, where UCX does not work: forgets all without touching it.
  void abandon();

  ucp_worker_h worker() const { return worker_; }
  ucp_context_h context() const { return context_; }
  // How others reach the worker; of any length.
  std::string read_address(std::vector<unsigned char>* address) const;
  // UCX has a transport over memory that processes of one host share.
  bool shares_memory() const { return shares_memory_; }
  // UCX has a transport within one process.
  bool has_loopback() const { return has_loopback_; }
  // The longest segment that UCX's tcp sends and takes, as the environment words it or in bytes; ""
  // without tcp.
  const std::string& tcp_segment() const { return tcp_segment_; }
  // tcp is the only network that UCX has.
  bool is_tcp_only() const { return is_tcp_only_; }
  // UCX_NET_DEVICES as it was set for `cards`; "": it was not.
  const std::string& devices() const { return devices_; }
  // It sends from and receives into memory of CUDA devices.
  bool takes_cuda() const { return takes_cuda_; }
  Heard& heard() { return heard_; }
  // The epoll sets of UCX's tcp (socket_watch.h).
  const std::vector<int>& epolls() const { return epolls_; }

 private:
  struct ContextOptions;
  std::string open_with(const char* transports, uint32_t rank_count);
  std::string make_context(const ContextOptions& options);
  std::string failed(const char* call, ucs_status_t status);
  void end();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  bool shares_memory_ = false;
  bool has_loopback_ = false;
  bool is_tcp_only_ = false;
  std::string tcp_segment_;
  std::vector<std::string> cards_;
  std::string devices_;
  std::vector<int> epolls_;
  bool takes_cuda_ = false;
  mutable Heard heard_;
};

// "1.13.1"
std::string library_version();
uint32_t library_version_number();
std::string version_text(uint32_t number);

}  // namespace weir::plugins::ucx
