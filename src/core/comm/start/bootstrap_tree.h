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
  struct Connection {
    Node::Link number = Node::kUp;
    std::unique_ptr<control::Link> link;  // null: it has ended
  };

  Tree(const JoiningRank& self, const Place& place, const TreeOptions& options);

  // Until this rank is the root or has a parent.
  Status find_place();
  void set_place(const Place& place);
  Result<const net::TlsContext*> tls_if_asked();
  Status look_for_parent(bool may_listen);
  Status settle(Parent parent);
  Status await_decision(const Parent& parent, bool* ended, std::optional<ChildAddress>* redirect);
  // Listens for children at the Unix socket `name`; null: another process does.
  Result<control::Acceptor*> listen(const std::string& name);
  void listen_at_place();
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
  Node::Link next_number_ = 1;
  uint32_t look_count_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t next_other_work_ns_ = 0;
  uint64_t next_check_ns_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace weir::comm
