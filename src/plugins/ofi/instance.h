// SPDX-License-Identifier: Apache-2.0
// Instance: one communicator's use of this transport, from open to close. join.cc makes it,
// traffic.cc moves its messages, one_sided.h puts and gets, notices.cc its notices, leave.cc ends it, ofi.cc is the table of functions over it. One
// thread at a time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "net/control_mesh.h"
#include "plugins/ofi/channel.h"
#include "plugins/ofi/control.h"
#include "plugins/ofi/endpoint.h"
#include "plugins/ofi/library.h"
#include "plugins/ofi/one_sided.h"
#include "plugins/ofi/report.h"
#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {

uint64_t now_ns();

// Who this rank is.
struct Identity {
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
};

class Instance {
 public:
  Instance(const Report& report, const Library& library, const Identity& identity)
      : report_(report), library_(library), identity_(identity) {}
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // open: finds the providers, listens.
  weir_result_t listen(const void* secret, size_t secret_bytes);
  weir_result_t address(unsigned char* out, size_t* bytes) const;
  // connect: meets the peers, opens the endpoint, and exchanges a first message with each.
  weir_result_t join(const unsigned char* const* addresses, const size_t* address_bytes,
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
  // Ends the endpoint, which may still move messages while it closes; the control connections stay.
  void quiesce();
  // These two leave operations alone: what the control connections tell of an end on the way is for a
  // later call of another function.
  weir_result_t notice_show(const void* notice, size_t bytes);
  weir_result_t notice_read(uint32_t peer, void* notice, size_t* bytes);

  // How the peer is reached, for people; "" of ourselves.
  std::string describe(uint32_t peer) const;

  const Report& report() const { return report_; }
  bool joined() const { return joined_; }
  // From connect to quiesce.
  bool has_endpoint() const { return joined_ && endpoint_ != nullptr; }
  uint32_t rank() const { return identity_.rank; }
  uint32_t rank_count() const { return identity_.rank_count; }

  // One-sided operations; valid once joined.
  OneSided* one_sided() { return &one_sided_; }
  // "" or why there are none.
  std::string remote_gap() const {
    return endpoint_ != nullptr ? endpoint_->remote_gap() : "the endpoint has ended";
  }
  // Before join.
  void set_key_proof(const net::Mac& proof) { key_proof_ = proof; }

  // For OneSided. What goes to `peer` carries its token.
  uint32_t token_of(uint32_t peer) const { return peers_[peer].token; }
  bool has_ended(uint32_t peer) const {
    return peers_[peer].handled_loss || peers_[peer].handled_goodbye;
  }
  bool has_left(uint32_t peer) const;
  // The provider has failed in what concerns the peer: has that ended? `is_end`: if it has not said so,
  // the error does.
  bool ends_behind_error(uint32_t peer, bool is_end);

 private:
  // join.cc
  weir_result_t read_addresses(const unsigned char* const* addresses, const size_t* address_bytes,
                               std::vector<RankAddress>* ranks) const;
  weir_result_t choose_provider(const std::vector<RankAddress>& ranks, std::string* name) const;
  weir_result_t meet(const std::vector<RankAddress>& ranks, uint64_t deadline_ns);
  weir_result_t open_endpoint(const std::string& provider);
  net::IpAddress source_address() const;
  weir_result_t exchange_cards(uint64_t deadline_ns);
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
  weir_result_t exchange_ready(uint64_t deadline_ns);
  weir_result_t wait_for_control(uint64_t deadline_ns, const char* what,
                                 bool (*has)(const Control&), bool moves_messages);
  weir_result_t missing(const char* what, const std::vector<uint32_t>& ranks) const;
  // What of the time went to libfabric on this rank, for the error of a start that came too late.
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

  Report report_;
  const Library& library_;
  Identity identity_;
  pid_t owner_ = getpid();
  std::unique_ptr<net::ControlMesh> mesh_;
  RankAddress own_;
  bool joined_ = false;
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
  bool broken_ = false;           // the completion queue
  weir_result_t told_ = WEIR_OK;  // by the host while the ranks meet
  uint64_t list_ns_ = 0;          // libfabric took to list its providers
  uint64_t open_ns_ = 0;          // and to open the endpoint
  bool uses_cuda_ = false;        // the process, when the endpoint was opened
};

}  // namespace weir::plugins::ofi
