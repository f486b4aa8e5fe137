// SPDX-License-Identifier: Apache-2.0
// Connection: what one rank of the tree says to a neighbor, and hears from it. Between hosts it may
// go on over another link, as when a path of the network fails: what was sent is kept until the
// neighbor's own messages show that it has come, and what the old link has lost is sent again. So
// nothing is lost, and nothing comes twice. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "core/base/types.h"
#include "core/comm/start/bootstrap_node.h"
#include "core/control/link.h"

namespace weir::comm {

class Connection {
 public:
  // `link`: null until go_on_over. `instance`: of the child (JoiningRank); 0: it is the connection
  // to the parent. `received_count`: messages that have come over `link` already.
  Connection(Node::Link number, std::unique_ptr<control::Link> link, Rank rank, uint32_t instance,
             uint32_t received_count)
      : number_(number),
        rank_(rank),
        instance_(instance),
        received_count_(received_count),
        link_(std::move(link)) {}

  Node::Link number() const { return number_; }
  bool is_open() const { return link_ != nullptr; }
  bool is_of(Rank rank, uint32_t instance) const { return rank_ == rank && instance_ == instance; }
  // Valid while it is open.
  control::Link& link() { return *link_; }
  const control::Link& link() const { return *link_; }
  bool is_local() const { return link_->is_local(); }
  uint32_t received_count() const { return received_count_; }
  void close() { link_.reset(); }

  void send(Node::Send message);
  // Gives what has come to `take`. False: the link has ended or is unusable.
  bool receive(const std::function<void(const control::Frame&)>& take);
  // It has ended because of what came over it.
  bool is_malformed() const { return malformed_ || link_->is_malformed(); }
  // All that was sent before `round` has come.
  void forget_before(uint32_t round);

  // ---- The child has connected again, and been told received_count.
  void go_on_over(std::unique_ptr<control::Link> link);
  // The child has not said yet what it has received.
  bool waits_for_child() const { return waits_for_child_; }
  // ---- The parent has been connected to again, and has received `count` messages. False: it
  // cannot have.
  bool go_on_over(std::unique_ptr<control::Link> link, uint32_t count);

 private:
  bool send_again_from(uint32_t count);

  Node::Link number_;
  Rank rank_;
  uint32_t instance_;
  bool waits_for_child_ = false;
  bool malformed_ = false;
  uint32_t sent_count_ = 0;
  uint32_t received_count_;
  std::deque<Node::Send> kept_;  // the last ones that were sent
  std::unique_ptr<control::Link> link_;
};

// The number that kAdmit and kAgain carry. False: `payload` is none.
std::string pack_count(uint32_t count);
bool unpack_count(std::string_view payload, uint32_t* count);

}  // namespace weir::comm
