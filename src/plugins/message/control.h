// SPDX-License-Identifier: Apache-2.0
// Control: what a message network (ucx, ofi, ncclnet) uses of the control network that its host
// offers (weir_control_t of weir/plugin.h): words (messages to a peer), cards (what each rank tells
// all others about itself), keys per direction, and whether a peer's process is alive.
//
// A word begins with one byte, its kind:
//
//   kind         offset  bytes  field (integers little-endian)
//   kGatherKind       1      1  1: the last part of this block
//                     2      n  a part of a block
//   kGiveUpKind                 the sender will not be connected, or has closed its instance
//   others                      the transport's
//
//   a block: for each rank, from the sender's on around the ring, 4 bytes of length and its card
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/auth.h"
#include "net/ip_address.h"
#include "weir/plugin.h"

namespace weir::plugins::message {

inline constexpr size_t kCardBytesMax = 65536;
inline constexpr size_t kWordBytesMax = WEIR_CONTROL_MESSAGE_BYTES_MAX - 16;  // see channels.h
inline constexpr char kGatherKind = 1;
inline constexpr char kGiveUpKind = 2;
inline constexpr char kOwnKind = 16;  // the first of the transport's

class Control {
 public:
  // Uses the host's control network, which may be missing where a rank is alone; both outlive this
  // object.
  void attach(const weir_host_t* host, uint32_t rank, uint32_t rank_count);
  bool is_there() const { return control_ != nullptr; }

  // WEIR_LIFE_*.
  int life(uint32_t peer) const {
    return peer == rank_ || control_ == nullptr ? int{WEIR_LIFE_HERE}
                                                : control_->life(control_->context, peer);
  }
  bool shares_host(uint32_t peer) const {
    return peer == rank_ || control_->shares_host(control_->context, peer) != 0;
  }
  // Sends a word of at most kWordBytesMax bytes, unless the peer has left or died.
  void say(uint32_t peer, std::string_view word) const;
  // Takes the oldest word of the peer that was not read yet, except words of `gather`; false: there
  // is none.
  bool hear(uint32_t peer, std::string* word);
  // Waits until all words to the peer have left this process, or the time is over.
  void flush(uint32_t peer, uint64_t deadline_ns) const;
  // A key that only both ranks know, for what goes from one to the other.
  net::Mac key(uint32_t from, uint32_t to, const char* purpose) const;
  // Tells the ranks that wait for this one in `gather`, or all ranks, that it will not take part.
  // They fail, and tell others.
  void give_up(bool tells_all) const;
  // A description of how the control network reaches the peer; "" without a connection.
  std::string describe(uint32_t peer) const;
  // An address of this rank that leads to the peer; not valid without a connection or within a
  // host.
  net::IpAddress own_address(uint32_t peer) const;

  // How a wait for other ranks ended. `ranks`: those whose cards have not come
  // (WEIR_ERROR_TIMEOUT), that have left or died (WEIR_ERROR_PEER_LOST), or that sent unreadable
  // words (WEIR_ERROR_REFUSED). Without ranks the host has kept the reason.
  struct Outcome {
    weir_result_t result = WEIR_OK;
    std::vector<uint32_t> ranks{};
  };
  // Every rank gives its card, of at most kCardBytesMax bytes, and receives all of them. Each rank
  // sends 2 log2(n) words at most, to ranks with which the control network is linked in any case
  // (the all-gather of Bruck, Ho, Kipnis, Upfal, Weathersby 1997). `work`, which may be empty, is
  // called while it waits; any result other than WEIR_OK ends the wait.
  Outcome gather(std::string_view card, uint64_t deadline_ns, std::vector<std::string>* cards,
                 const std::function<weir_result_t()>& work = {});

 private:
  bool receive(uint32_t peer, std::string* word);
  bool hear_part(uint32_t peer, std::string* word);
  void say_block(uint32_t peer, std::string_view block) const;
  bool read_block(std::string_view block, uint32_t first, uint32_t count,
                  std::vector<std::string>* cards) const;

  const weir_host_t* host_ = nullptr;
  const weir_control_t* control_ = nullptr;
  uint32_t rank_ = 0;
  uint32_t rank_count_ = 1;
  std::unique_ptr<char[]> room_;  // for a word
  std::map<uint32_t, std::deque<std::string>>
      parts_;  // [peer], that have come before they are gathered
};

uint64_t monotonic_ns();

// "rank 3", "ranks 0, 1 and 5 more"
std::string names_of(const std::vector<uint32_t>& ranks);

}  // namespace weir::plugins::message
