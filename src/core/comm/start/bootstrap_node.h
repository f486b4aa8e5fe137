// SPDX-License-Identifier: Apache-2.0
// Node: what one rank of the tree does, without sockets and without a clock of its own, so that the
// same code runs over sockets and in a simulated network. Messages come in, messages go out; the
// caller knows which link is which connection. One thread at a time per object.
//
// The tree grows by arrival: a rank that has no room for another child redirects the joining rank
// to one of its children. Blobs go up as they come, in messages of all that has gathered since the
// last turn, and all of them come down in rank order once the root has the last. Joining is round 0
// of the same: ranks that are present go up, and the news that all are present comes down. The root
// determines which ranks are missing; a rank that sees a failure tells all its neighbors, so that
// every rank has the same text.
//
// Messages are frames of kind kStart (core/control/link.h). Integers are little-endian.
//
//   detail        from     rank         payload
//   1 kAdmit      parent   its own      none: the joining rank is its child now; or, of one that
//                                       comes over another path: how many messages came (4)
//   2 kRedirect   parent   rank to ask  where that one takes children; the last one
//   3 kAddress    child    0            where the child takes children
//   4 kGive       child    0            patience, us (8); records
//   5 kTake       parent   0            records of all ranks in rank order; of round 0: none
//   6 kFailure    both     0            code (4), text; the last one of its direction
//   7 kHere       child    0            none: so that it sees whether the parent's host answers
//   8 kAgain      child    0            after that kAdmit: how many messages came to it (4)
//
//   where         0      2  port
//                 2    ...  place (bootstrap_place.h)
//   a record      0      4  rank
//                 4      4  bytes of the blob, at most kBlobBytesMax
//                 8    ...  blob; of round 0, which the parent makes: process (8), -1: on another
//                           host
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/control/link.h"

namespace weir::comm {

enum class Message : uint8_t {
  kAdmit = 1,
  kRedirect = 2,
  kAddress = 3,
  kGive = 4,
  kTake = 5,
  kFailure = 6,
  // Of the connection (bootstrap_connection.h), which the node does not see.
  kHere = 7,
  kAgain = 8,
};

inline constexpr size_t kRecordHeaderBytes = 8;
inline constexpr size_t kFailureTextBytesMax = 4096;
void append_record(Rank rank, std::string_view blob, std::string* records);
// Takes the first record off `records`, which is not empty; false when it is not whole.
bool take_record(std::string_view* records, Rank* rank, std::string_view* blob);
std::string pack_failure(const Status& status);
// Text from a peer that holds the secret; bytes that are not printable become '?'. A code that does
// not exist becomes kInternal.
Status unpack_failure(std::string_view payload);

// Where a rank takes children: on its own host by name, from others at the place and its port.
struct ChildAddress {
  Rank rank = 0;
  Place place{};
};
std::string pack_address(const ChildAddress& address);
// False when it holds no valid place.
bool unpack_address(std::string_view payload, ChildAddress* address);

inline constexpr int64_t kElsewhere = -1;  // the number of a process on another host
// "process 1234", "a process of another namespace", "a process on another host"
std::string describe_process(int64_t process);

// What a joining rank has proven about itself, and what the system says about it.
struct JoinedRank {
  Rank rank = 0;
  Rank rank_count = 0;
  uint64_t patience_us = 0;  // how long it is willing to wait
  int64_t process = 0;
};

// The root ends a round before the earliest deadline and tells why. Adds to a deadline the time for
// which the others wait for that news on a busy machine: a quarter of the time there was, from 50
// ms to 1 s.
uint64_t with_grace(uint64_t deadline_ns, uint64_t now_ns);
// The time that is left, in us.
uint64_t patience_until(uint64_t deadline_ns, uint64_t now_ns);

class Node {
 public:
  using Link = uint32_t;
  static constexpr Link kUp = 0;  // to the parent; the children have the caller's own numbers
  static constexpr size_t kChildrenMax = 16;

  struct Send {
    Link link = kUp;
    Message message = Message::kGive;
    uint32_t round = 0;
    std::string payload{};
    // Valid as long as this object.
    control::Frame frame() const {
      return {control::Frame::Kind::kStart, static_cast<uint8_t>(message), 0, round, payload};
    }
  };

  // `began_ns`: when the time up to the deadline began, for texts; 0: now.
  Node(Rank self, Rank rank_count, uint64_t now_ns, uint64_t deadline_ns, uint64_t began_ns = 0);

  // ---- Joining: first be_root or, once the link is connected, set_parent. Children may come
  // before.
  void be_root();
  void set_parent(Rank rank, int64_t process);
  bool is_root() const { return is_root_; }
  // Ranks that have given nothing in this round, as far as the root knows.
  std::vector<Rank> missing() const;
  bool has_lost_parent() const { return has_lost_parent_; }
  bool has_parent() const { return parent_.has_value(); }
  // Whether all ranks may fit directly below the root, so that no other rank takes children.
  static bool fits_below_root(Rank rank_count) { return rank_count <= kChildrenMax + 1; }
  bool has_room() const { return children_.size() < kChildrenMax; }
  // A joining rank that is admitted already.
  void add_child(Link link, const JoinedRank& joined, uint64_t now_ns);
  // The child to which the next joining rank is redirected; nothing while no child has told its
  // address.
  std::optional<ChildAddress> redirect();
  // Tells the parent where this node takes children. Call after set_parent.
  void tell_address(const ChildAddress& address);

  // ---- A round of all_gather.
  void start_round(std::string_view blob, uint64_t now_ns, uint64_t deadline_ns);
  std::vector<std::string> take_blobs() { return std::move(blobs_); }

  // ---- Events. A message that comes between two rounds waits for the next round, which its sender
  // has already begun.
  void receive(Link link, const control::Frame& frame, uint64_t now_ns);
  // The bytes that came over `link` are no frame.
  void receive_malformed(Link link);
  // TLS has found that the bytes that came over `link` are not those that were sent.
  void receive_damaged(Link link);
  void closed(Link link);
  // Called after the events of one moment; sends the resulting messages. Links that have closed
  // fail the round that is under way, or else the next one.
  void end_turn(uint64_t now_ns);
  // Between two rounds: fails with the failures that have come meanwhile.
  enum class Look : uint8_t {
    kChildrensReasons,  // reasons of children, which may not have taken what was sent down
    kReasons,           // reasons of all neighbors that have given up
    kAll,               // these, and links that have closed before they gave anything more
  };
  void look(Look what);

  bool busy() const { return busy_; }
  const Status& status() const { return status_; }  // the failure, once there was one
  // The moment at which `expire` is to be called.
  uint64_t expiry_ns() const { return expiry_ns_; }
  // The deadline has passed: the failure names the ranks that this node waited for. `remark`
  // follows the names of ranks that have not joined.
  void expire(uint64_t now_ns, const std::string& remark);
  // The round is done on this rank, but `links` have not taken all of it in time.
  void expire_delivery(const std::vector<Link>& links);
  // Ends this node and tells its neighbors.
  void fail(const Status& status) { fail(status, std::nullopt); }
  std::vector<Send> take_sends() { return std::exchange(sends_, {}); }

  uint32_t round() const { return round_; }
  // What follows the text of a failure that the parent was told, and of which it took no notice.
  std::string silence_of_parent() const;

 private:
  struct Peer {
    Link link = kUp;
    Rank rank = 0;
    int64_t process = 0;
    std::optional<ChildAddress> address{};
  };
  // What came between two rounds.
  struct Early {
    Link link = kUp;
    bool closed = false;
    Message message = Message::kGive;
    uint32_t round = 0;
    std::string payload{};
  };

  const Peer* find(Link link) const;
  std::string describe_time(uint64_t now_ns) const;
  std::string occasion() const;  // "all ranks had joined", "all_gather 3 was complete"
  std::string describe(const Peer& peer) const;
  void send(Link link, Message message, std::string payload);
  void send_down(std::string_view records);
  void fail(const Status& status, std::optional<Link> told_by);
  void out_of_turn(Link link, const std::string& what);
  void handle(const Early& event, uint64_t now_ns);
  void heed(uint64_t deadline_ns, uint64_t now_ns);
  void heed_losses();
  bool judge(Rank rank, std::string_view blob);
  void give(std::string_view records, Link from);
  void take(const Early& event);
  void complete();

  const Rank self_;
  const Rank rank_count_;
  bool is_root_ = false;
  bool has_lost_parent_ = false;  // which told no reason
  std::optional<Peer> parent_;
  std::vector<Peer> children_;
  std::vector<Send> sends_;
  std::deque<Early> early_;
  std::vector<Link> lost_;  // not handled yet
  bool busy_ = true;
  Status status_;
  size_t next_redirect_ = 0;

  uint32_t round_ = 0;
  const uint64_t began_ns_;
  uint64_t start_ns_ = 0;                   // of the round
  uint64_t deadline_ns_ = 0;                // the earliest of this node and of those below
  std::optional<uint64_t> others_left_ns_;  // the time left when one of those told it
  uint64_t expiry_ns_ = 0;
  std::vector<std::string> up_;     // records for the parent, as many to a message as fit
  std::vector<std::string> blobs_;  // by rank
  std::vector<bool> given_;         // root
  Rank blob_count_ = 0;
};

}  // namespace weir::comm
