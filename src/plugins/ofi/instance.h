// SPDX-License-Identifier: Apache-2.0
// Instance: one communicator's use of this transport, from open to close. join.cc makes it,
// traffic.cc moves its messages, one_sided.h puts and gets, leave.cc ends it, ofi.cc is the table
// of functions over it. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/auth.h"
#include "net/ip_address.h"
#include "plugins/message/participant.h"
#include "plugins/ofi/channel.h"
#include "plugins/ofi/control.h"
#include "plugins/ofi/endpoint.h"
#include "plugins/ofi/library.h"
#include "plugins/ofi/one_sided.h"
#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {

using common::Report;
using common::text_of;

inline uint64_t now_ns() { return message::monotonic_ns(); }

class Instance : public message::Participant {
 public:
  static constexpr char kName[] = "ofi";
  static constexpr uint32_t kRankCountMax = ofi::kRankCountMax;
  using Op = ofi::Op;
  using OneSided = ofi::OneSided;
  struct Inside {
    explicit Inside(Instance&) {}
  };

  explicit Instance(const Library& library) : library_(library) {}
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  static bool viable(const weir_host_t* host, std::string* text);
  static weir_result_t open(const weir_host_t* host, const weir_transport_config_t& config,
                            std::unique_ptr<Instance>* made);
  weir_result_t address(unsigned char* out, size_t* bytes) const;
  // Opens the endpoint, tells its name, and exchanges a first message with each peer.
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes, Op* op);
  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op);
  // "" or why no message may lie on a device.
  std::string device_gap() const;
  weir_result_t device_message(bool sending, uint32_t peer, uint32_t lane, void* data,
                               uint64_t bytes, int device, Op* op);
  weir_result_t test(Op* op);
  weir_result_t progress();
  weir_result_t peer_alive(uint32_t peer);
  weir_result_t peer_leave(uint32_t peer);
  // Ends the endpoint, which may still move messages while it closes; the control network stays.
  void quiesce();

  // A description of how the peer is reached; "" for this rank.
  std::string describe(uint32_t peer) const;

  // One-sided operations; from connect to quiesce, with which registrations end, too.
  OneSided* one_sided() { return joined && endpoint_ != nullptr ? &one_sided_ : nullptr; }
  weir_result_t no_one_sided() const {
    return joined ? report.fail(WEIR_ERROR_INVALID_USAGE, "the instance was quiesced")
                  : not_connected();
  }
  // "" or why there are none.
  std::string remote_gap() const {
    if (!joined) return "not connected";
    return endpoint_ != nullptr ? endpoint_->remote_gap() : "the endpoint has ended";
  }

  // For OneSided. What goes to `peer` carries its token.
  uint32_t token_of(uint32_t peer) const { return peers_[peer].token; }
  bool has_ended(uint32_t peer) const {
    return peers_[peer].handled_loss || peers_[peer].handled_goodbye;
  }
  bool has_left(uint32_t peer) const;
  // Whether the peer has ended, after an error of the provider that concerns it. `is_end`: the
  // error itself says so, if the peer has not.
  bool ends_behind_error(uint32_t peer, bool is_end);

 private:
  // join.cc
  weir_result_t find_providers();
  weir_result_t read_addresses(const unsigned char* const* addresses, const size_t* address_bytes,
                               std::vector<RankAddress>* ranks) const;
  weir_result_t choose_provider(const std::vector<RankAddress>& ranks, std::string* name) const;
  weir_result_t open_endpoint(const std::string& provider);
  weir_result_t source_address(net::IpAddress* address) const;
  weir_result_t gather_cards(uint64_t deadline_ns);
  // With each peer; the provider refers to them until they are all done, or it has ended.
  struct FirstMessages {
    std::vector<Op> sends;
    std::vector<Op> recvs;
    std::vector<uint64_t> greetings;
    uint64_t mine;
  };
  weir_result_t exchange_first_messages(uint64_t deadline_ns);
  weir_result_t post_first_messages(FirstMessages* messages);
  weir_result_t await_first_messages(const FirstMessages& messages, uint64_t deadline_ns);
  weir_result_t await_ready(uint64_t deadline_ns);
  weir_result_t gathered(const message::Control::Outcome& outcome, const char* what) const;
  weir_result_t missing(const char* what, const std::vector<uint32_t>& ranks) const;
  // How much time libfabric took on this rank, for the error of a start that took too long.
  std::string own_work() const;
  weir_result_t gone(uint32_t peer) const;

  // traffic.cc
  Channel* channel_of(uint32_t peer, uint32_t lane);
  weir_result_t post(Channel* channel, Op* op);
  bool post_to_provider(Channel* channel, Direction* direction, Op* op);
  void wait_with(Channel* channel);
  void post_waiting(Direction* direction, Channel* channel);
  void drive_waiting();
  // Reads completions and posts what waits; the number of completions.
  int pump();
  void settle(const Completion& completion);
  void fail_from(Channel* channel, Op* op, Failure failure);
  void look_at_controls();
  void look_at(uint32_t peer);
  void lose(uint32_t peer);
  void take_goodbye(uint32_t peer);
  bool awaits(uint32_t peer) const;  // a message
  bool has_taken_all(uint32_t peer) const;
  weir_result_t tell(const Channel& channel, const Op& op);
  weir_result_t broken() const;

  // leave.cc
  void leave();
  void end_endpoint();
  bool has_exchanged_with(uint32_t peer) const;

  const Library& library_;
  uint64_t comm_id_ = 0;
  RankAddress own_;
  uint32_t own_token_ = 0;
  net::Mac key_proof_{};
  OneSided one_sided_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<Control[]> controls_;  // [peer]
  struct PeerState {
    uint32_t token = 0;
    bool handled_loss = false;
    bool handled_goodbye = false;
    bool said_taken = false;
    uint64_t awaited_ns = 0;  // since when a receive waits behind its goodbye and end; 0: none
  };
  std::vector<PeerState> peers_;
  std::vector<Channel> channels_;  // [peer * kLaneCount + lane]
  Channel* waiting_ = nullptr;     // channels with operations that the provider has not
  uint32_t idle_pumps_ = 0;
  bool broken_ = false;             // the completion queue
  uint64_t list_ns_ = 0;            // libfabric took to list its providers
  uint64_t open_ns_ = 0;            // and to open the endpoint
  std::vector<std::string> cards_;  // that this rank uses; empty: any
  bool uses_cuda_ = false;          // the process, when the endpoint was opened
};

}  // namespace weir::plugins::ofi
