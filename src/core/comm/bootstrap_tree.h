// SPDX-License-Identifier: Apache-2.0
// Tree: the bootstrap over sockets, a Node with a door and a few connections. A rank has at most
// Node::kChildrenMax children and one parent, however many ranks there are. One thread at a time per
// object.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/bootstrap.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_knock.h"
#include "core/comm/bootstrap_node.h"

namespace weir::comm {

struct TreeOptions {
  JoinOptions join{};
  DoorLimits door{};
  // For tests: every rank behaves as if it were alone on a host with the addresses of the place, and
  // rank 0 on the host of the place.
  bool own_hosts = false;
  // Connections between hosts are inside TLS (bootstrap_tls.h).
  bool tls = false;
};

class Tree final : public Bootstrap {
 public:
  static Result<std::unique_ptr<Bootstrap>> join(const Secret& secret, Rank rank, Rank rank_count,
                                                 uint64_t deadline_ns, const Place& place,
                                                 const TreeOptions& options = {});

  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t deadline_ns) override;
  Status look() override;
  Status give_up(const Status& reason) override;

 private:
  // Of the next round, whose neighbour is there before this rank.
  struct EarlyFrame {
    wire::Header header;
    std::string payload;
  };
  struct Connection {
    Node::Link link = Node::kUp;
    Channel channel;
    std::deque<EarlyFrame> early = {};
  };
  enum class Stop { kWhenDone, kAtTime };

  Tree(const Guest& guest, const Place& place, const TreeOptions& options);

  // Until this rank is the root or has a parent.
  Status find_place();
  void set_place(const Place& place);
  Status set_tls();  // for the guest's secret
  Status look(bool may_open);
  Status settle(Entry entry);
  Status open_child_door();
  Status nobody_listens() const;
  // Whether it is known by other means that not all will come, asked now and then.
  Status check_still_possible();
  std::string remark() const;  // on ranks that have not joined
  // Runs the node until it is done, or, with kAtTime, at most until `until_ns`.
  Status work(Stop stop, uint64_t until_ns);
  void serve_doors(const std::vector<pollfd>& entries);
  void check_tls(const Arrival& arrival);
  void decide(Arrival arrival);
  void decide_waiting();
  void read(Connection* connection);
  void refuse(Connection* connection, Channel::Read result);
  void send();
  void deliver();
  bool read_reason(Connection* connection);  // true when its neighbour has told why it failed
  void read_ahead(Connection* connection);
  void say_farewell();

  Guest guest_;
  Place place_;
  TreeOptions options_;
  bool is_here_ = false;
  bool joined_ = false;  // all have come
  Node node_;
  std::vector<std::unique_ptr<Door>> doors_;  // as the first of this host; for those sent on
  std::vector<Connection> connections_;
  std::vector<Arrival> waiting_;  // guests for whom there is no room, here or below, as yet
  Node::Link next_link_ = 1;
  uint32_t look_count_ = 0;
  uint64_t next_look_ns_ = 0;
  uint64_t next_check_ns_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace weir::comm
