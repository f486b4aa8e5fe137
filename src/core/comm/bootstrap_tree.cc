// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/comm/bootstrap_tls.h"

namespace weir::comm {
namespace {

constexpr uint64_t kPauseNsMin = 200'000;
constexpr uint64_t kPauseNsMax = 5'000'000;
// Between two looks at another host.
constexpr uint64_t kNetworkPauseNs = 10'000'000;
// How long a failure may take to reach the neighbours that do not read just now.
constexpr uint64_t kFarewellNs = 100'000'000;
// How long a rank that another one has left waits to hear why.
constexpr uint64_t kReasonNs = 300'000'000;
// Rank 0 is mostly on the host of the place. Another rank there is the root only where rank 0 has not
// come for this long, or for a quarter of the time that there is.
constexpr uint64_t kRank0FirstNs = 500'000'000;
// Guests that may wait until a child can take them; more are hung up on, and knock again.
constexpr size_t kWaitingMax = 64;
// Between two questions whether all will come.
constexpr uint64_t kCheckNs = 20'000'000;
// A guest that is sent on more often than this looks from the start again.
constexpr int kRedirectsMax = 32;

}  // namespace

Tree::Tree(const Guest& guest, const Place& place, const TreeOptions& options)
    : guest_(guest),
      options_(options),
      node_(guest.rank, guest.rank_count, now_ns(), guest.deadline_ns, options.join.began_ns),
      start_ns_(now_ns()) {
  set_place(place);
}

void Tree::set_place(const Place& place) {
  place_ = place;
  is_here_ = options_.own_hosts ? guest_.rank == 0 : place_.empty() || is_here(place_);
}

Status Tree::set_tls() {
  if (!options_.tls) return Status();
  auto made = bootstrap_tls(guest_.secret);
  if (!made.ok()) return made.status();
  guest_.tls = made.take();
  return Status();
}

Result<std::unique_ptr<Bootstrap>> Tree::join(const Secret& secret, Rank rank, Rank rank_count,
                                              uint64_t deadline_ns, const Place& place,
                                              const TreeOptions& options) {
  std::unique_ptr<Tree> tree(new Tree({secret, rank, rank_count, deadline_ns}, place, options));
  Status status = tree->set_tls();
  if (status.ok()) status = tree->find_place();
  tree->times_.rendezvous_ns = now_ns() - tree->start_ns_;
  if (status.ok()) status = tree->work(Stop::kWhenDone, UINT64_MAX);
  if (!status.ok()) return status;
  tree->joined_ = true;
  tree->times_.handshake_ns = now_ns() - tree->start_ns_ - tree->times_.rendezvous_ns;
  tree->doors_.clear();
  return std::unique_ptr<Bootstrap>(std::move(tree));
}

Status Tree::find_place() {
  const LookAgain& look_again = options_.join.look_again;
  uint64_t pause_ns = kPauseNsMin;
  for (;;) {
    const bool follows = look_again && guest_.rank != 0;
    if (follows) {
      Place place;
      const Result<bool> changed = look_again(&guest_.secret, &place);
      if (!changed.ok()) return changed.status();
      if (changed.value()) {
        set_place(place);
        WEIR_RETURN_IF_ERROR(set_tls());
        look_count_ = 0;
      }
    }
    WEIR_RETURN_IF_ERROR(look(!follows));
    if (node_.is_root() || node_.has_parent()) return Status();
    const uint64_t now = now_ns();
    const Status possible = check_still_possible();
    if (now >= guest_.deadline_ns || !possible.ok()) {
      node_.fail(possible.ok() ? nobody_listens() : possible);
      return work(Stop::kWhenDone, UINT64_MAX);
    }
    if (doors_.empty()) {
      sleep_ns(pause_ns, guest_.deadline_ns);
    } else {
      WEIR_RETURN_IF_ERROR(work(Stop::kAtTime, std::min(now + pause_ns, guest_.deadline_ns)));
    }
    pause_ns = std::min(pause_ns * 3 / 2, kPauseNsMax);
  }
}

// The first rank of a host opens a door for the others of that host. On the host of `place_` it is
// the root; on another it goes on looking for a parent.
Status Tree::look(bool may_open) {
  if (doors_.empty()) {
    const std::string name = options_.own_hosts
                                 ? child_door_name(guest_.secret, guest_.rank_count + guest_.rank)
                                 : door_name(guest_.secret);
    Knock knocked = knock(guest_, name);
    if (!knocked.ok()) return knocked.status();
    if (knocked.value()) return settle(std::move(*knocked.value()));
    const uint64_t rank_0_first_ns =
        std::min(kRank0FirstNs, (guest_.deadline_ns - std::min(guest_.deadline_ns, start_ns_)) / 4);
    const bool is_turn = guest_.rank == 0 || !is_here_ || now_ns() - start_ns_ >= rank_0_first_ns;
    if (may_open && is_turn) {
      Result<std::unique_ptr<Door>> door =
          Door::open(guest_.secret, name, guest_.rank, guest_.rank_count, options_.door);
      if (!door.ok()) return door.status();
      if (door.value() != nullptr) {
        doors_.push_back(door.take());
        if (is_here_) {
          doors_.back()->listen_at_place(place_);
          node_.be_root();
          return Status();
        }
      }
    }
  }
  if (place_.empty() || is_here_ || now_ns() < next_look_ns_) return Status();
  Knock knocked = knock_at(guest_, place_, look_count_++);
  next_look_ns_ = now_ns() + kNetworkPauseNs;
  if (!knocked.ok()) {
    node_.fail(knocked.status());
    return work(Stop::kWhenDone, UINT64_MAX);
  }
  return knocked.value() ? settle(std::move(*knocked.value())) : Status();
}

// Goes where we are sent until somebody admits us. Without success all begins anew.
Status Tree::settle(Entry entry) {
  for (int i = 0; entry.redirect; ++i) {
    if (i == kRedirectsMax) return Status();
    Knock next = knock_at_door(guest_, *entry.redirect);
    if (!next.ok()) {
      node_.fail(next.status());
      return work(Stop::kWhenDone, UINT64_MAX);
    }
    if (!next.value()) return Status();
    entry = std::move(*next.value());
  }
  connections_.push_back({Node::kUp, std::move(entry.channel)});
  node_.set_parent(entry.host_rank, entry.host_pid);
  return Node::fits_one_host(guest_.rank_count) ? Status() : open_child_door();
}

Status Tree::open_child_door() {
  Result<std::unique_ptr<Door>> door =
      Door::open(guest_.secret, child_door_name(guest_.secret, guest_.rank), guest_.rank,
                 guest_.rank_count, options_.door);
  if (!door.ok()) return door.status();
  if (door.value() == nullptr) return Status();  // two ranks with one number: the root will say so
  wire::DoorAddress address;
  if (options_.own_hosts) {
    address.place = place_;
  } else {
    if (!place_.empty()) address.place = place_of_this_host();
    address.place.host = host_tag();
  }
  address.port = door.value()->listen_at_any_port(address.place);
  doors_.push_back(door.take());
  node_.tell_door(address);
  return Status();
}

Status Tree::check_still_possible() {
  if (!options_.join.still_possible || now_ns() < next_check_ns_) return Status();
  next_check_ns_ = now_ns() + kCheckNs;
  return options_.join.still_possible();
}

Status Tree::nobody_listens() const {
  const uint64_t began_ns = options_.join.began_ns == 0 ? start_ns_ : options_.join.began_ns;
  const double seconds = static_cast<double>(now_ns() - began_ns) * 1e-9;
  if (place_.empty()) {
    return Status(
        Code::kTimeout,
        fmt::format("timed out: nobody answers within {:.3g} s for rank {} of {} on this "
                    "host, and no address of another is known; is the process that listens "
                    "for the ranks stopped?",
                    seconds, guest_.rank, guest_.rank_count));
  }
  std::string where;
  for (const net::IpAddress& address : place_.addresses) where += " " + net::to_string(address);
  const std::string ports = place_.port == 0 ? "" : fmt::format(" or their port {}", place_.port);
  return Status(
      Code::kTimeout,
      fmt::format(
          "timed out: nobody listens within {:.3g} s for rank {} of {}, neither on this host "
          "nor at{}; one of the ranks must run on the host with these addresses, and its "
          "ports {} to {}{} be open to the others (WEIR_IFNAME chooses its interfaces)",
          seconds, guest_.rank, guest_.rank_count, where, kPlacePortFirst,
          kPlacePortFirst + kPlacePortRange - 1, ports));
}

std::string Tree::remark() const {
  std::string text = options_.join.remedy.empty() ? "" : "; " + options_.join.remedy;
  if (!place_.empty()) {
    text += fmt::format("; they look for this rank ({}) at {}", guest_.rank,
                        net::to_string(place_.addresses.front()));
  } else if (text.empty()) {
    text = "; start them on this machine, as the same user, with the same id";
  }
  for (const auto& door : doors_) text += door->turned_away();
  return text;
}

Status Tree::work(Stop stop, uint64_t until_ns) {
  std::vector<pollfd> entries;
  for (;;) {
    const uint64_t now = now_ns();
    if (!joined_) {
      const Status possible = check_still_possible();
      if (!possible.ok()) node_.fail(possible);
    }
    node_.end_turn(now);
    send();
    if (!node_.busy()) break;
    if (stop == Stop::kAtTime && now >= until_ns) return Status();
    if (now >= node_.expiry_ns()) {
      node_.expire(now, remark());
      break;
    }
    uint64_t wake_ns = node_.expiry_ns();
    if (stop == Stop::kAtTime) wake_ns = std::min(wake_ns, until_ns);
    if (options_.join.still_possible && !joined_) wake_ns = std::min(wake_ns, next_check_ns_);
    entries.clear();
    for (const auto& door : doors_) {
      door->append_poll_entries(&entries);
      wake_ns = std::min(wake_ns, door->next_expiry_ns());
    }
    const size_t first_connection = entries.size();
    for (const Connection& one : connections_) {
      entries.push_back({one.channel.fd(), one.channel.events(), 0});
      if (one.channel.has_unread() || !one.early.empty()) wake_ns = now;
    }
    const Status waited = wait_for_events(&entries, wake_ns);
    if (!waited.ok()) {
      node_.fail(waited);
      break;
    }
    const size_t connection_count = connections_.size();
    serve_doors(entries);
    for (size_t i = 0; i < connection_count; ++i) {
      const bool has_event = entries[first_connection + i].revents != 0;
      Connection& one = connections_[i];
      if (has_event || one.channel.has_unread() || !one.early.empty()) read(&one);
    }
    decide_waiting();
    std::erase_if(connections_, [](const Connection& one) { return !one.channel.is_open(); });
  }
  if (node_.status().ok()) deliver();
  if (!node_.status().ok()) say_farewell();
  return node_.status();
}

void Tree::serve_doors(const std::vector<pollfd>& entries) {
  std::vector<Arrival> arrivals;
  size_t at = 0;
  for (const auto& door : doors_) {
    const size_t count = door->poll_entry_count();
    const Status served = door->serve(entries.data() + at, &arrivals);
    if (!served.ok()) node_.fail(served);
    at += count;
  }
  for (Arrival& arrival : arrivals) decide(std::move(arrival));
}

// All ranks must agree, or nothing of what goes between hosts is where WEIR_TLS wants it.
void Tree::check_tls(const Arrival& arrival) {
  if (arrival.pid != kElsewherePid || arrival.channel.is_secured() == options_.tls) return;
  if (!node_.status().ok()) return;
  const char* const with = "WEIR_TLS=control or all";
  const char* const without = "WEIR_TLS=off";
  node_.fail(Status(
      Code::kMismatch,
      fmt::format("rank {} of {} ({}) runs with {}, rank {} with {}; all ranks must "
                  "run with the same",
                  arrival.claim.rank, guest_.rank_count, describe_process(arrival.pid),
                  options_.tls ? without : with, guest_.rank, options_.tls ? with : without)));
}

void Tree::decide(Arrival arrival) {
  check_tls(arrival);
  Channel& channel = arrival.channel;
  if (!node_.status().ok()) {
    channel.send(wire::encode_failure(0, node_.status()));
    (void)channel.flush();
  } else if (node_.has_room()) {
    channel.send(wire::encode_admit());
    const Node::Link link = next_link_++;
    node_.add_child(link, arrival.claim, arrival.pid, now_ns());
    connections_.push_back({link, std::move(channel)});
  } else if (const auto to = node_.redirect()) {
    channel.send(wire::encode_redirect(*to));
    (void)channel.flush();
  } else if (waiting_.size() < kWaitingMax) {
    (void)channel.flush();
    waiting_.push_back(std::move(arrival));
  }
}

void Tree::decide_waiting() {
  std::vector<Arrival> waiting;
  waiting.swap(waiting_);
  for (Arrival& arrival : waiting) decide(std::move(arrival));
}

void Tree::read(Connection* connection) {
  Channel& channel = connection->channel;
  while (node_.busy()) {
    if (!connection->early.empty()) {
      const EarlyFrame frame = std::move(connection->early.front());
      connection->early.pop_front();
      node_.receive(connection->link, frame.header, frame.payload, now_ns());
      continue;
    }
    const Channel::Read result = channel.read(node_.expected(connection->link));
    if (result == Channel::Read::kFrame) {
      node_.receive(connection->link, channel.header(), channel.payload(), now_ns());
      continue;
    }
    if (result == Channel::Read::kClosed) {
      node_.closed(connection->link);
      channel.close();
    } else if (result != Channel::Read::kNothing) {
      refuse(connection, result);
    }
    return;
  }
}

// What came is no frame that this rank can take.
void Tree::refuse(Connection* connection, Channel::Read result) {
  if (result == Channel::Read::kDamaged) {
    node_.receive_damaged(connection->link);
  } else {
    node_.receive_malformed(connection->link, connection->channel.header());
  }
}

void Tree::send() {
  for (Node::Send& one : node_.take_sends()) {
    const auto it = std::find_if(connections_.begin(), connections_.end(),
                                 [&](const Connection& c) { return c.link == one.link; });
    if (it != connections_.end()) it->channel.send(std::move(one.frame));
  }
  // Of a connection that cannot be written, poll will tell that it has ended.
  for (Connection& one : connections_) (void)one.channel.flush();
}

// The node is done; its neighbours may not have taken everything. Who dies now, with or without
// having taken it, is noticed in the next round, if any: others have taken it already, and all are
// to have the same outcome. Who had given up before has told why.
void Tree::deliver() {
  send();
  std::vector<pollfd> entries;
  for (;;) {
    entries.clear();
    std::vector<Connection*> waiting;
    for (Connection& one : connections_) {
      if (!one.channel.flush()) {
        (void)read_reason(&one);
      } else if (one.channel.sending()) {
        waiting.push_back(&one);
        entries.push_back({one.channel.fd(), POLLOUT, 0});
      }
    }
    if (waiting.empty() || !node_.status().ok()) return;
    if (now_ns() >= node_.expiry_ns()) {
      std::vector<Node::Link> links;
      for (const Connection* one : waiting) links.push_back(one->link);
      node_.expire_delivery(links);
      return;
    }
    const Status waited = wait_for_events(&entries, node_.expiry_ns());
    if (!waited.ok()) node_.fail(waited);
  }
}

bool Tree::read_reason(Connection* connection) {
  Channel& channel = connection->channel;
  for (;;) {
    const Channel::Read result = channel.read(node_.expected(connection->link));
    if (result != Channel::Read::kFrame) return false;
    if (channel.header().kind != wire::Kind::kFailure) continue;
    node_.receive(connection->link, channel.header(), channel.payload(), now_ns());
    return true;
  }
}

void Tree::read_ahead(Connection* connection) {
  Channel& channel = connection->channel;
  while (node_.status().ok()) {
    const Channel::Read result = channel.read(node_.expected(connection->link));
    if (result == Channel::Read::kFrame) {
      if (channel.header().kind == wire::Kind::kFailure) {
        node_.receive(connection->link, channel.header(), channel.payload(), now_ns());
      } else {
        connection->early.push_back({channel.header(), std::string(channel.payload())});
      }
      continue;
    }
    if (result == Channel::Read::kClosed) {
      // What it has told before counts.
      if (connection->early.empty()) node_.closed(connection->link);
      channel.close();
    } else if (result != Channel::Read::kNothing) {
      refuse(connection, result);
    }
    return;
  }
}

Status Tree::look() {
  for (Connection& one : connections_) {
    if (one.channel.is_open()) read_ahead(&one);
  }
  node_.heed_losses();
  if (!node_.status().ok()) say_farewell();
  return node_.status();
}

Status Tree::give_up(const Status& reason) {
  // What fails here may follow from what has failed there, and the news of that is on its way.
  const bool follows = reason.code() == Code::kPeerLost || reason.code() == Code::kAborted;
  const uint64_t until_ns = now_ns() + (follows ? kReasonNs : 0);
  for (;;) {
    for (Connection& one : connections_) {
      if (node_.status().ok()) (void)read_reason(&one);
    }
    if (!node_.status().ok() || now_ns() >= until_ns) break;
    sleep_ns(kPauseNsMin, until_ns);
  }
  node_.fail(reason);
  say_farewell();
  return node_.status();
}

void Tree::say_farewell() {
  send();
  decide_waiting();
  const uint64_t until_ns = now_ns() + kFarewellNs;
  std::vector<pollfd> entries;
  for (;;) {
    entries.clear();
    for (Connection& one : connections_) {
      if (one.channel.flush() && one.channel.sending()) {
        entries.push_back({one.channel.fd(), POLLOUT, 0});
      }
    }
    if (entries.empty() || now_ns() >= until_ns) break;
    if (!wait_for_events(&entries, until_ns).ok()) break;
  }
  connections_.clear();
  doors_.clear();
}

Result<std::vector<std::string>> Tree::all_gather(std::string_view blob, uint64_t deadline_ns) {
  if (!node_.status().ok()) return node_.status();
  if (blob.size() > kBlobBytesMax) {
    return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                        blob.size(), kBlobBytesMax));
  }
  node_.start_round(blob, now_ns(), deadline_ns);
  WEIR_RETURN_IF_ERROR(work(Stop::kWhenDone, UINT64_MAX));
  return node_.take_blobs();
}

}  // namespace weir::comm
