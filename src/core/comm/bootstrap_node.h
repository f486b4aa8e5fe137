// SPDX-License-Identifier: Apache-2.0
// Node: what one rank of the tree does, without sockets and without a clock of its own, so that the
// same code runs over sockets and in a simulated network. Frames come in, frames go out; which link
// is which connection is the caller's business. One thread at a time per object.
//
// The tree grows by arrival: a host that has no room for another child sends the guest on to one of
// its children. Blobs go up as they come, in frames of whatever has gathered since the last turn,
// and all of them come down in rank order once the root has the last. The root judges who is
// missing; whoever sees a failure tells all its neighbours, so that every rank has the same text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/bootstrap_wire.h"

namespace weir::comm {

// The root ends a round before the earliest deadline and tells why. How long the others wait for that
// news on a busy machine: a quarter of the time there was, from 50 ms to 1 s.
uint64_t with_grace(uint64_t deadline_ns, uint64_t now_ns);

class Node {
 public:
  using Link = uint32_t;
  static constexpr Link kUp = 0;  // to the parent; the children have the caller's own numbers
  static constexpr size_t kChildrenMax = 16;

  struct Send {
    Link link = kUp;
    std::string frame;
  };

  // `began_ns`: when the time up to the deadline began, for texts; 0: now.
  Node(Rank self, Rank rank_count, uint64_t now_ns, uint64_t deadline_ns, uint64_t began_ns = 0);

  // ---- Joining: first be_root or, once the link stands, set_parent. Children may come before.
  void be_root();
  void set_parent(Rank rank, int64_t pid);
  bool is_root() const { return is_root_; }
  bool has_parent() const { return parent_.has_value(); }
  // Whether every rank may turn out to fit below the first host, so that no other needs a door.
  static bool fits_one_host(Rank rank_count) { return rank_count <= kChildrenMax + 1; }
  bool has_room() const { return children_.size() < kChildrenMax; }
  // A guest that has proven `claim`, admitted already.
  void add_child(Link link, const wire::Claim& claim, int64_t pid, uint64_t now_ns);
  // The child to whom the next guest is sent; nothing while no child has told its door.
  std::optional<wire::DoorAddress> redirect();
  // Tells the parent where this node takes children. Call after set_parent.
  void tell_door(const wire::DoorAddress& address);

  // ---- A round of all_gather.
  void start_round(std::string_view blob, uint64_t now_ns, uint64_t deadline_ns);
  std::vector<std::string> take_blobs();

  // ---- Events.
  // The kinds that may arrive on `link` now.
  std::vector<wire::Kind> expected(Link link) const;
  void receive(Link link, const wire::Header& header, std::string_view payload, uint64_t now_ns);
  void receive_malformed(Link link, const wire::Header& header);
  // TLS has found that what came over `link` is not what was sent.
  void receive_damaged(Link link);
  void closed(Link link);
  // After the events of one moment: what they led to is sent. Links that have closed fail the round
  // that is under way, or else the next one.
  void end_turn(uint64_t now_ns);
  // Between two rounds: those links fail this node now.
  void heed_losses();

  bool busy() const { return state_ == State::kBusy; }
  const Status& status() const { return status_; }  // the failure, once there was one
  // The moment at which `expired` becomes true.
  uint64_t expiry_ns() const { return expiry_ns_; }
  // Too late: the failure names whom this node waited for. `remark` follows the names of ranks that
  // have not joined.
  void expire(uint64_t now_ns, const std::string& remark);
  // The round is done here, but `links` have not taken all of it in time.
  void expire_delivery(const std::vector<Link>& links);
  // Ends this node and tells its neighbours.
  void fail(const Status& status) { fail(status, std::nullopt); }
  std::vector<Send> take_sends();

  uint32_t round() const { return round_; }
  size_t child_count() const { return children_.size(); }

 private:
  enum class State { kBusy, kDone };
  struct Peer {
    Link link = kUp;
    Rank rank = 0;
    int64_t pid = 0;
    std::optional<wire::DoorAddress> door;
  };

  Peer* find_child(Link link);
  const Peer* find(Link link) const;
  std::string describe_time(uint64_t now_ns) const;
  std::string occasion() const;  // "all ranks had joined", "all_gather 3 was complete"
  std::string describe(const Peer& peer) const;
  void fail(const Status& status, std::optional<Link> told_by);
  void out_of_turn(const Peer& peer, const wire::Header& header);
  void heed(uint64_t deadline_ns, uint64_t now_ns);
  void keep_for_parent(wire::Member member, uint64_t now_ns);
  void judge(const wire::Member& member, uint64_t now_ns);  // root: a rank that has joined
  void add_members(std::string_view payload, uint64_t now_ns);
  void give(std::string_view records, const Peer* from);
  void take(std::string_view records, const wire::Header& header);
  void flush_up(uint64_t now_ns);
  void send_all_down();
  void check_joined();

  const Rank self_;
  const Rank rank_count_;
  bool is_root_ = false;
  std::optional<Peer> parent_;
  std::vector<Peer> children_;
  std::vector<Send> sends_;
  std::vector<Link> lost_;  // not heeded yet
  State state_ = State::kBusy;
  Status status_;
  size_t next_redirect_ = 0;

  uint32_t round_ = 0;
  const uint64_t began_ns_;
  uint64_t start_ns_ = 0;                   // of joining, or of the round
  uint64_t deadline_ns_ = 0;                // the earliest of this node and of those below
  std::optional<uint64_t> others_left_ns_;  // what was left of it when one of those told it
  uint64_t expiry_ns_ = 0;

  // Joining.
  std::vector<wire::Member> members_up_;  // for the parent; patience as a deadline, ns
  std::vector<int64_t> pids_;             // root, by rank; kNotHere
  Rank here_count_ = 0;

  // A round.
  std::string records_up_;
  std::vector<size_t> record_ends_;  // of records_up_
  std::vector<std::string> blobs_;
  std::vector<bool> given_;  // root
  Rank blob_count_ = 0;
};

}  // namespace weir::comm
