// SPDX-License-Identifier: Apache-2.0
// Tree: the bootstrap over links of the control network (core/control/link.h), a Node with a few
// connections. A rank has at most Node::kChildrenMax children and one parent, however many ranks
// there are. One thread at a time per object.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/process_generation.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/bootstrap_connection.h"
#include "core/comm/start/bootstrap_node.h"
#include "core/comm/start/bootstrap_parent.h"
#include "core/control/acceptor.h"

namespace weir::comm {

struct TreeOptions {
  JoinOptions join{};
  // Time limit of connections without proof (core/control/acceptor.h).
  uint64_t unproven_ns = 2'000'000'000;
  size_t unproven_count = 128;
  // For tests: every rank behaves as if it were alone on a host with the addresses of the place,
  // and rank 0 on the host of the place.
  bool own_hosts = false;
  // Connections between hosts are inside TLS.
  bool tls = false;
};

class Tree final : public Bootstrap {
 public:
  static Result<std::unique_ptr<Bootstrap>> join(const Secret& secret, Rank rank, Rank rank_count,
                                                 uint64_t deadline_ns, const Place& place,
                                                 const TreeOptions& options = {});
  ~Tree() override;

  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t deadline_ns) override;
  Status look() override;
  Status give_up(const Status& reason) override;

 private:
  using Arrival = control::Acceptor::Arrival;
  // What a parent that has taken the proof says about the joining rank.
  struct Decision {
    enum class Kind : uint8_t { kNone, kAdmitted, kRedirected, kEnded };
    Kind kind = Kind::kNone;  // kNone: nothing in time
    Rank parent = 0;
    ChildAddress redirect{};
    bool is_known = false;        // it is the parent's child already, from which
    uint32_t received_count = 0;  // so many messages came
    uint32_t early_count = 0;     // messages that came right after the admission
  };

  Tree(const JoiningRank& self, const Place& place, const TreeOptions& options);

  // Until this rank is the root or has a parent.
  Status find_place();
  void set_place(const Place& place);
  Result<const net::TlsContext*> tls_if_asked();
  Status look_for_parent(bool may_listen);
  Status settle(Parent parent);
  Result<Decision> await_decision(const Parent& parent, uint64_t patience_ns);
  void admit(Parent parent, const Decision& decision);
  // Listens for children at the Unix socket `name`; null: another process does.
  Result<control::Acceptor*> listen(const std::string& name);
  void listen_at_place();
  void stop_accepting();
  Status take_children();  // children that others redirect
  Status nobody_listens() const;
  // Asks now and then, through `still_possible`, whether all ranks can still come.
  Status check_still_possible();
  void do_other_work(uint64_t now_ns);
  std::string remark() const;  // on ranks that have not joined
  // Runs the node until it is done, at most until `until_ns`.
  Status work(uint64_t until_ns);
  Status end(const Status& status);
  void serve_acceptors();
  void check_tls(const Arrival& arrival, const JoinedRank& joined);
  void decide(Arrival arrival);
  void decide_waiting();
  void read(Connection* connection);
  void hang_up(Connection* connection) const;

  // ---- Other paths of the network (bootstrap_paths.cc)
  void keep_unanswered(Parent* parent);
  bool take_up_again(Rank rank, uint32_t instance, Arrival* arrival);
  Connection* remote_parent();
  void watch_path(uint64_t now_ns);
  void try_other_path();
  void await_children();
  void send();
  void deliver();
  bool is_taken_by_parent(const Status& reason);
  void say_farewell();
  Status end_joining(const Status& status);
  void tell_later_ranks(uint64_t until_ns);
  void take_over_root(uint64_t until_ns) const;

  JoiningRank self_;
  Place place_;
  TreeOptions options_;
  const MakingProcess maker_;
  bool is_here_ = false;
  bool joined_ = false;  // all have come
  Node node_;
  std::unique_ptr<const net::TlsContext> tls_;  // outlives links
  // One as the first rank of this host; one for ranks that others redirect.
  std::vector<std::unique_ptr<control::Acceptor>> acceptors_;
  std::vector<Connection> connections_;
  std::set<Rank> told_;           // of the failure, before they were admitted
  std::vector<Arrival> waiting_;  // there is no room for these yet, here or below
  std::vector<std::unique_ptr<control::Link>> unanswered_;  // Parent::unanswered
  std::optional<ChildAddress> parent_at_;                   // else it is the root
  bool has_several_addresses_ = false;                      // where this rank takes children
  uint64_t next_here_ns_ = UINT64_MAX;                      // kHere to the parent
  uint64_t next_path_ns_ = 0;                               // another one may be tried
  uint32_t path_count_ = 0;                                 // that were tried
  Node::Link next_number_ = 1;
  uint32_t look_count_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t next_other_work_ns_ = 0;
  uint64_t next_check_ns_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace weir::comm
