// SPDX-License-Identifier: Apache-2.0
#include "netns/relay.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "core/base/clock.h"

namespace weir::test {
namespace {

// A frame with what virtio says of its checksum and length before it, as the kernel leaves both to
// a card.
constexpr size_t kFrameBytesMax = 70'000;

int open_packets(const std::string& interface) {
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
  const int on = 1;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
  if (fd < 0 || address.sll_ifindex == 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on) != 0 ||
      setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return -1;
  }
  return fd;
}

class Direction {
 public:
  Direction(int from, int to, const RelayOptions& options)
      : from_(from), to_(to), options_(options) {}

  void take(uint64_t now_ns) {
    for (;;) {
      buffer_.resize(kFrameBytesMax);
      const ssize_t got = recv(from_, buffer_.data(), buffer_.size(), 0);
      if (got <= 0) return;
      const auto bytes = static_cast<size_t>(got);
      if (!frames_.empty() && queued_bytes_ + bytes > options_.queue_bytes) continue;
      line_free_ns_ =
          std::max(line_free_ns_, now_ns) + bytes * 8 * 1'000'000'000 / options_.bits_per_second;
      queued_bytes_ += bytes;
      buffer_.resize(bytes);
      const auto delay_ns = static_cast<uint64_t>(options_.delay_ms) * 1'000'000;
      frames_.push_back({buffer_, line_free_ns_, line_free_ns_ + delay_ns});
    }
  }
  // What is on its way is not in the queue any more.
  void give(uint64_t now_ns) {
    for (Frame& frame : frames_) {
      if (frame.is_queued && frame.leaves_ns <= now_ns) {
        frame.is_queued = false;
        queued_bytes_ -= frame.bytes.size();
      }
    }
    for (; !frames_.empty() && frames_.front().arrives_ns <= now_ns; frames_.pop_front()) {
      (void)send(to_, frames_.front().bytes.data(), frames_.front().bytes.size(), 0);
    }
  }
  uint64_t next_ns() const { return frames_.empty() ? UINT64_MAX : frames_.front().arrives_ns; }

 private:
  struct Frame {
    std::vector<unsigned char> bytes;
    uint64_t leaves_ns;
    uint64_t arrives_ns;
    bool is_queued = true;
  };
  const int from_;
  const int to_;
  const RelayOptions options_;
  std::vector<unsigned char> buffer_;
  std::deque<Frame> frames_;
  size_t queued_bytes_ = 0;
  uint64_t line_free_ns_ = 0;
};

}  // namespace

bool run_relay(const std::string& first, const std::string& second, const RelayOptions& options) {
  const int a = open_packets(first);
  const int b = open_packets(second);
  if (a < 0 || b < 0) return false;
  Direction there(a, b, options);
  Direction back(b, a, options);
  for (;;) {
    const uint64_t now = now_ns();
    there.take(now);
    back.take(now);
    there.give(now);
    back.give(now);
    const uint64_t next = std::min(there.next_ns(), back.next_ns());
    const uint64_t wait_ns = next <= now ? 0 : std::min<uint64_t>(next - now, 1'000'000'000);
    pollfd entries[] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    (void)poll(entries, 2, static_cast<int>((wait_ns + 999'999) / 1'000'000));
  }
}

}  // namespace weir::test
