// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap_tree.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::comm {
namespace {

constexpr uint64_t kPauseNsMin = 200'000;
constexpr uint64_t kPauseNsMax = 5'000'000;
// Between two looks at another host.
constexpr uint64_t kNetworkPauseNs = 10'000'000;
// How long a failure may take to reach the neighbors that do not read just now.
constexpr uint64_t kFarewellNs = 100'000'000;
// How long a rank waits for the reason after another one has left it.
constexpr uint64_t kReasonNs = 300'000'000;
// Rank 0 is mostly on the host of the place. Another rank there is the root only where rank 0 has
// not come for this long, or for a quarter of the time that there is.
constexpr uint64_t kRank0FirstNs = 500'000'000;
// After joining has failed: how long the root waits for ranks that have not come, to tell them why.
constexpr uint64_t kLaterRanksNs = 2'000'000'000;
// Joining ranks that may wait until a child can take them; further ones are disconnected, and come
// again.
constexpr size_t kWaitingMax = 64;
// Between two calls of `still_possible`.
constexpr uint64_t kCheckNs = 20'000'000;
// A rank that is redirected more often than this starts again.
constexpr int kRedirectsMax = 32;
// How long a rank that has proven itself may take to say whether it admits us.
constexpr uint64_t kDecisionNs = 20'000'000'000;

// Room for all ranks, and for strangers.
int backlog_of(Rank rank_count) {
  return static_cast<int>(std::min(uint64_t{rank_count} + 64, uint64_t{4096}));
}

void sleep_until(uint64_t time_ns) {
  const uint64_t now = now_ns();
  if (time_ns > now) std::this_thread::sleep_for(std::chrono::nanoseconds(time_ns - now));
}

}  // namespace

Tree::Tree(const JoiningRank& self, const Place& place, const TreeOptions& options)
    : self_(self),
      options_(options),
      node_(self.rank, self.rank_count, now_ns(), self.deadline_ns, options.join.began_ns),
      start_ns_(now_ns()) {
  if (options.join.meanwhile) self_.meanwhile = [this] { do_other_work(now_ns()); };
  set_place(place);
}

Tree::~Tree() {
  const bool accepts = joined_ && !acceptors_.empty();
  if (accepts && node_.status().ok() && maker_.is_this()) await_children();
  for (Connection& one : connections_) hang_up(&one);
}

void Tree::set_place(const Place& place) {
  place_ = place;
  is_here_ = options_.own_hosts ? self_.rank == 0 : place_.empty() || is_here(place_);
}

// Null: WEIR_TLS does not ask for it.
Result<const net::TlsContext*> Tree::tls_if_asked() {
  std::string reason;
  if (options_.tls && tls_ == nullptr) tls_ = make_tls(self_.secret, &reason);
  if (options_.tls && tls_ == nullptr) return Status(Code::kSystem, reason);
  return options_.tls ? tls_.get() : nullptr;
}

Result<std::unique_ptr<Bootstrap>> Tree::join(const Secret& secret, Rank rank, Rank rank_count,
                                              uint64_t deadline_ns, const Place& place,
                                              const TreeOptions& options) {
  JoiningRank self{secret, rank, rank_count, deadline_ns};
  if (!net::fill_random(reinterpret_cast<unsigned char*>(&self.instance), sizeof self.instance)) {
    return system_error("getrandom");
  }
  std::unique_ptr<Tree> tree(new Tree(self, place, options));
  if (rank_count == 1) {
    tree->node_.be_root();
  } else {
    WEIR_RETURN_IF_ERROR(tree->find_place());
  }
  tree->times_.rendezvous_ns = now_ns() - tree->start_ns_;
  const Status all_came = tree->work(UINT64_MAX);
  if (!all_came.ok()) return tree->end_joining(all_came);
  tree->joined_ = true;
  tree->times_.handshake_ns = now_ns() - tree->start_ns_ - tree->times_.rendezvous_ns;
  tree->stop_accepting();
  return std::unique_ptr<Bootstrap>(std::move(tree));
}

// ---- Finding a place in the tree

Status Tree::find_place() {
  const LookAgain& look_again = options_.join.look_again;
  uint64_t pause_ns = kPauseNsMin;
  for (;;) {
    const bool follows = look_again && self_.rank != 0;
    if (follows) {
      Place place;
      const Result<bool> changed = look_again(&self_.secret, &place);
      if (!changed.ok()) return changed.status();
      if (changed.value()) {
        set_place(place);
        tls_.reset();
        look_count_ = 0;
      }
    }
    const Status looked = look_for_parent(!follows);
    if (!looked.ok()) return end(looked);
    if (node_.is_root() || node_.has_parent()) return Status();
    const uint64_t now = now_ns();
    do_other_work(now);
    const Status possible = check_still_possible();
    if (!possible.ok()) return end(possible);
    if (now >= self_.deadline_ns) {
      return end(unanswered_.empty() ? nobody_listens() : unanswered(self_, kElsewhere, ""));
    }
    const uint64_t next_ns = std::min(now + pause_ns, self_.deadline_ns);
    if (acceptors_.empty()) {
      sleep_until(next_ns);
    } else {
      WEIR_RETURN_IF_ERROR(work(next_ns));
    }
    pause_ns = std::min(pause_ns * 3 / 2, kPauseNsMax);
  }
}

// The first rank of a host becomes the parent of the others of that host. On the host of `place_`
// it is the root; on another host it continues to look for a parent.
Status Tree::look_for_parent(bool may_listen) {
  if (acceptors_.empty()) {
    const std::string name = options_.own_hosts
                                 ? socket_name(self_.secret, self_.rank_count + self_.rank)
                                 : socket_name(self_.secret);
    // Who listens there is known only once it answers.
    const bool may_be_0 = is_here_ && !options_.own_hosts && self_.rank != 0;
    Result<Parent> found = connect_locally(
        self_, name, may_be_0 ? " (rank 0, unless that came later than others)" : "");
    if (!found.ok()) return found.status();
    if (found.value().link != nullptr) return settle(found.take());
    const uint64_t rank_0_first_ns =
        std::min(kRank0FirstNs, (self_.deadline_ns - std::min(self_.deadline_ns, start_ns_)) / 4);
    const bool is_turn = self_.rank == 0 || !is_here_ || now_ns() - start_ns_ >= rank_0_first_ns;
    if (may_listen && is_turn) {
      const Result<control::Acceptor*> made = listen(name);
      if (!made.ok()) return made.status();
      if (made.value() != nullptr && is_here_) {
        listen_at_place();
        node_.be_root();
        return Status();
      }
    }
  }
  if (place_.empty() || is_here_ || now_ns() < next_look_ns_) return Status();
  const Result<const net::TlsContext*> tls = tls_if_asked();
  if (!tls.ok()) return tls.status();
  Result<Parent> found = connect_to_place(self_, place_, look_count_++, tls.value());
  next_look_ns_ = now_ns() + kNetworkPauseNs;
  if (!found.ok()) return found.status();
  return settle(found.take());
}

// Follows redirections until a parent admits this rank. Without success all begins anew.
Status Tree::settle(Parent parent) {
  std::optional<ChildAddress> at;  // nothing: at the place
  for (int i = 0; i <= kRedirectsMax; ++i) {
    keep_unanswered(&parent);
    Decision decision;
    const size_t path_count = (at ? at->place : place_).addresses.size();
    const bool has_others = parent.process == kElsewhere && path_count > 1;
    if (parent.link != nullptr) {
      Result<Decision> decided =
          await_decision(parent, has_others ? answer_patience_ns(self_, path_count) : kDecisionNs);
      if (!decided.ok()) return decided.status();
      decision = decided.take();
    }
    switch (decision.kind) {
      case Decision::Kind::kAdmitted:
        parent_at_ = at;
        admit(std::move(parent), decision);
        return Node::fits_below_root(self_.rank_count) ? Status() : take_children();
      case Decision::Kind::kRedirected:
        at = decision.redirect;
        break;
      case Decision::Kind::kEnded:
        return Status();
      case Decision::Kind::kNone:
        if (parent.link != nullptr && !has_others) {
          return unanswered(self_, parent.process, parent.number);
        }
        if (parent.link != nullptr) parent.unanswered.push_back(std::move(parent.link));
        keep_unanswered(&parent);
        // A rank that may have taken this one in is asked again.
        if (!at || unanswered_.empty() || now_ns() >= self_.deadline_ns) return Status();
    }
    const Result<const net::TlsContext*> tls = tls_if_asked();
    if (!tls.ok()) return tls.status();
    parent = Parent{};
    Result<Parent> next = connect_to(self_, *at, tls.value());
    if (!next.ok()) return next.status();
    parent = next.take();
  }
  return Status();
}

// Until the parent has decided, for `patience_ns` at most.
Result<Tree::Decision> Tree::await_decision(const Parent& parent, uint64_t patience_ns) {
  control::Link* const link = parent.link.get();
  const uint64_t until_ns =
      std::min(with_grace(self_.deadline_ns, now_ns()), now_ns() + patience_ns);
  Decision decision;
  Status told;
  bool good = true;
  const auto take = [&](const control::Frame& frame) {
    // What the parent sends right after the admission is for the node.
    if (decision.kind == Decision::Kind::kAdmitted) {
      node_.receive(Node::kUp, frame, now_ns());
      ++decision.early_count;
      return true;
    }
    const auto message = static_cast<Message>(frame.detail);
    const bool is_start = frame.kind == control::Frame::Kind::kStart;
    decision.redirect.rank = frame.rank;
    if (is_start && message == Message::kAdmit) {
      decision.kind = Decision::Kind::kAdmitted;
      if (!node_.has_parent()) node_.set_parent(frame.rank, parent.process);
      decision.parent = frame.rank;
      decision.is_known = !frame.payload.empty();
      good = frame.payload.empty() || unpack_count(frame.payload, &decision.received_count);
    } else if (is_start && message == Message::kFailure) {
      told = unpack_failure(frame.payload);
    } else if (is_start && message == Message::kRedirect &&
               unpack_address(frame.payload, &decision.redirect)) {
      decision.kind = Decision::Kind::kRedirected;
    } else {
      good = false;
    }
    return good;
  };
  for (;;) {
    const bool open = link->receive(take);
    if (!told.ok()) return told;
    if (decision.kind != Decision::Kind::kNone) return decision;
    if (!good || link->is_malformed()) return unreadable(self_, parent.process);
    if (!open) decision.kind = Decision::Kind::kEnded;
    if (!open || now_ns() >= until_ns) return decision;
    std::vector<pollfd> entries{{link->fd(), POLLIN, 0}};
    if (!link->has_unread()) WEIR_RETURN_IF_ERROR(wait_for_events(self_, &entries, until_ns));
  }
}

Result<control::Acceptor*> Tree::listen(const std::string& name) {
  control::AcceptorConfig config;
  config.identity = identity_of(self_);
  config.unproven_ns = options_.unproven_ns;
  config.unproven_count = options_.unproven_count;
  // Connections with and without TLS are accepted, so that ranks which disagree on it can be told.
  config.requires_tls = false;
  config.tls = [this]() -> const net::TlsContext* {
    std::string reason;
    if (tls_ == nullptr) tls_ = make_tls(self_.secret, &reason);
    return tls_.get();
  };
  auto made = control::Acceptor::make(config);
  if (!made.ok()) return made.status();
  const int listener = net::listen_locally(name, backlog_of(self_.rank_count));
  if (listener < 0 && errno == EADDRINUSE) return nullptr;
  if (listener < 0 || !made.value()->add(listener, true)) {
    return system_error("listen at an abstract socket");
  }
  acceptors_.push_back(made.take());
  return acceptors_.back().get();
}

// Also at the addresses of the place. Ranks of this host are let in whether this succeeds or not;
// the others name, in their error, where they looked.
void Tree::listen_at_place() {
  const int backlog = backlog_of(self_.rank_count);
  has_several_addresses_ = place_.addresses.size() > 1;
  for (const net::IpAddress& address : place_.addresses) {
    int fd = -1;
    for (uint32_t i = 0; i < kPlacePortCount && fd < 0; ++i) {
      uint16_t port = place_port(self_.secret, i);
      fd = net::listen_at(address, &port, backlog);
    }
    if (fd >= 0) (void)acceptors_.back()->add(fd, false);
    uint16_t given = place_.port;
    fd = given == 0 ? -1 : net::listen_at(address, &given, backlog);
    if (fd >= 0) (void)acceptors_.back()->add(fd, false);
  }
}

Status Tree::take_children() {
  const Result<control::Acceptor*> made = listen(socket_name(self_.secret, self_.rank));
  if (!made.ok()) return made.status();
  if (made.value() == nullptr) return Status();
  ChildAddress address{self_.rank, {}};
  if (options_.own_hosts) {
    address.place.addresses = place_.addresses;
  } else {
    if (!place_.empty()) address.place = place_of_this_host();
    address.place.host = host_tag();
  }
  address.place.port = 0;
  has_several_addresses_ = has_several_addresses_ || address.place.addresses.size() > 1;
  for (const net::IpAddress& one : address.place.addresses) {
    const int fd = net::listen_at(one, &address.place.port, backlog_of(self_.rank_count));
    if (fd >= 0) (void)made.value()->add(fd, false);
  }
  node_.tell_address(address);
  return Status();
}

// All have come. Children on other hosts may come again, over another path where there is one.
void Tree::stop_accepting() {
  const bool has_remote_child =
      std::any_of(connections_.begin(), connections_.end(), [](const Connection& one) {
        return one.number() != Node::kUp && one.is_open() && !one.is_local();
      });
  for (const auto& acceptor : acceptors_) acceptor->close_local();
  std::erase_if(acceptors_, [&](const auto& acceptor) {
    return !has_several_addresses_ || !has_remote_child || !acceptor->listens_on_network();
  });
}

Status Tree::check_still_possible() {
  if (!options_.join.still_possible || now_ns() < next_check_ns_) return Status();
  next_check_ns_ = now_ns() + kCheckNs;
  return options_.join.still_possible();
}

void Tree::do_other_work(uint64_t now) {
  if (!options_.join.meanwhile || now < next_other_work_ns_) return;
  // Most calls end before.
  if (next_other_work_ns_ != 0) options_.join.meanwhile();
  next_other_work_ns_ = now + kOtherWorkNs;
}

Status Tree::nobody_listens() const {
  const uint64_t began_ns = options_.join.began_ns == 0 ? start_ns_ : options_.join.began_ns;
  const double seconds = static_cast<double>(now_ns() - began_ns) * 1e-9;
  if (place_.empty()) {
    return Status(
        Code::kTimeout,
        fmt::format(
            "timed out: within {:.3g} s no process on this host answered rank {} of {}, which "
            "knows no address on another host; is the process that listens for the ranks stopped?",
            seconds, self_.rank, self_.rank_count));
  }
  std::string where;
  for (const net::IpAddress& address : place_.addresses) where += " " + net::to_string(address);
  const std::string ports = place_.port == 0 ? "" : fmt::format(" or their port {}", place_.port);
  return Status(Code::kTimeout,
                fmt::format("timed out: within {:.3g} s rank {} of {} found no process that "
                            "listens for the ranks, neither on this host nor at{}; a rank must run "
                            "on the host with these addresses, and its ports {} to {}{} must be "
                            "open to the other ranks (WEIR_IFNAME chooses its interfaces)",
                            seconds, self_.rank, self_.rank_count, where, kPlacePortFirst,
                            kPlacePortFirst + kPlacePortRange - 1, ports));
}

std::string Tree::remark() const {
  std::string text = options_.join.remedy.empty() ? "" : "; " + options_.join.remedy;
  if (!place_.empty()) {
    text += fmt::format("; every rank must be able to reach rank {} at {}", self_.rank,
                        net::to_string(place_.addresses.front()));
  } else if (text.empty()) {
    text = "; start all ranks on this machine, as the same user, with the same id";
  }
  for (const auto& acceptor : acceptors_) text += acceptor->turned_away().text();
  return text;
}

// ---- Working

Status Tree::work(uint64_t until_ns) {
  std::vector<pollfd> entries;
  for (;;) {
    const size_t acceptor_count = acceptors_.size();
    serve_acceptors();
    for (size_t i = 0; i < connections_.size() && node_.busy(); ++i) {
      const size_t entry = acceptor_count + i;
      Connection& one = connections_[i];
      // At first, and of a connection that has just come, nothing is known.
      const bool known = entry < entries.size() && one.is_open() && !one.link().has_unread() &&
                         entries[entry].fd == one.link().fd();
      if (!known || entries[entry].revents != 0) read(&one);
    }
    decide_waiting();
    std::erase_if(connections_, [](const Connection& one) { return !one.is_open(); });
    if (node_.busy()) watch_path(now_ns());
    const uint64_t now = now_ns();
    if (!joined_) {
      const Status possible = check_still_possible();
      if (!possible.ok()) node_.fail(possible);
    }
    do_other_work(now);
    node_.end_turn(now);
    send();
    if (!node_.busy()) break;
    if (now >= until_ns) return Status();
    if (now >= node_.expiry_ns()) {
      node_.expire(now, remark());
      break;
    }
    uint64_t wake_ns = std::min(node_.expiry_ns(), until_ns);
    if (options_.join.still_possible && !joined_) wake_ns = std::min(wake_ns, next_check_ns_);
    if (options_.join.meanwhile) wake_ns = std::min(wake_ns, next_other_work_ns_);
    wake_ns = std::min(wake_ns, next_here_ns_);
    entries.clear();
    for (const auto& acceptor : acceptors_) {
      entries.push_back({acceptor->fd(), POLLIN, 0});
      wake_ns = std::min(wake_ns, acceptor->next_ns());
    }
    for (const Connection& one : connections_) {
      entries.push_back({one.link().fd(), static_cast<short>(one.link().events()), 0});
      if (one.link().has_unread()) wake_ns = now;
    }
    const Status waited = wait_for_events(&entries, wake_ns);
    if (!waited.ok()) node_.fail(waited);
  }
  if (node_.status().ok()) deliver();
  if (!node_.status().ok()) say_farewell();
  return node_.status();
}

Status Tree::end(const Status& status) {
  node_.fail(status);
  say_farewell();
  return node_.status();
}

void Tree::serve_acceptors() {
  std::vector<Arrival> arrivals;
  for (const auto& acceptor : acceptors_) {
    acceptor->serve(&arrivals);
    if (!acceptor->is_out_of_descriptors()) continue;
    node_.fail(Status(
        Code::kSystem,
        fmt::format("rank {} of {} is out of file descriptors (or memory) and cannot accept the "
                    "connections of other ranks; raise `ulimit -n` (or the memory limit)",
                    self_.rank, self_.rank_count)));
  }
  for (Arrival& arrival : arrivals) {
    int error_number = 0;
    arrival.link->handshake().welcome();
    (void)arrival.link->advance(&error_number);
    // A rank that is not welcomed at once comes again.
    if (arrival.link->is_proven()) decide(std::move(arrival));
  }
}

// All ranks must agree on WEIR_TLS, or traffic between hosts would not be protected as it demands.
void Tree::check_tls(const Arrival& arrival, const JoinedRank& joined) {
  const control::Link& link = *arrival.link;
  if (link.is_local() || link.stream().is_secured() == options_.tls) return;
  const char* const with = "WEIR_TLS=control or all";
  const char* const without = "WEIR_TLS=off";
  node_.fail(Status(
      Code::kMismatch,
      fmt::format("rank {} of {} ({}) runs with {}, rank {} with {}; WEIR_TLS must be the same on "
                  "all ranks",
                  joined.rank, self_.rank_count, describe_process(joined.process),
                  options_.tls ? without : with, self_.rank, options_.tls ? with : without)));
}

void Tree::decide(Arrival arrival) {
  control::Link& link = *arrival.link;
  const net::Handshake& handshake = link.handshake();
  const net::Subject& subject = handshake.subject();
  const JoinedRank joined{handshake.peer(), handshake.rank_count(),
                          subject[0] | uint64_t{subject[1]} << 32,
                          link.is_local() ? arrival.process : kElsewhere};
  const auto say = [&link](Message message, Rank rank, const std::string& payload) {
    link.queue({control::Frame::Kind::kStart, static_cast<uint8_t>(message), rank, 0, payload});
    (void)link.flush();
  };
  check_tls(arrival, joined);
  if (node_.status().ok() && take_up_again(joined.rank, subject[2], &arrival)) return;
  if (!node_.status().ok()) {
    say(Message::kFailure, 0, pack_failure(node_.status()));
    told_.insert(joined.rank);
  } else if (joined_) {
    // All have come: it belongs to another start.
  } else if (node_.has_room()) {
    say(Message::kAdmit, self_.rank, "");
    node_.add_child(next_number_, joined, now_ns());
    connections_.emplace_back(next_number_++, std::move(arrival.link), joined.rank, subject[2], 0);
    return;
  } else if (const auto to = node_.redirect()) {
    say(Message::kRedirect, to->rank, pack_address(*to));
  } else if (waiting_.size() < kWaitingMax) {
    waiting_.push_back(std::move(arrival));
    return;
  }
  link.shut();
}

void Tree::decide_waiting() {
  for (Arrival& arrival : std::exchange(waiting_, {})) decide(std::move(arrival));
}

void Tree::read(Connection* connection) {
  if (!connection->is_open()) return;
  const bool open = connection->receive(
      [&](const control::Frame& frame) { node_.receive(connection->number(), frame, now_ns()); });
  if (open) return;
  const control::Link& link = connection->link();
  using Failure = net::Stream::Failure;
  const Failure failure = link.stream().failure();
  if (failure == Failure::kDamaged ||
      (failure == Failure::kBroken && !link.stream().reason().empty())) {
    node_.receive_damaged(connection->number());
  } else if (connection->is_malformed() || failure != Failure::kNone) {
    node_.receive_malformed(connection->number());
  } else {
    node_.closed(connection->number());
    hang_up(connection);
  }
}

// In a forked child the parent's connection goes on.
void Tree::hang_up(Connection* connection) const {
  if (connection->is_open() && maker_.is_this()) connection->link().shut();
  connection->close();
}

void Tree::send() {
  for (Node::Send& one : node_.take_sends()) {
    const auto it = std::find_if(connections_.begin(), connections_.end(),
                                 [&](const Connection& c) { return c.number() == one.link; });
    if (it != connections_.end()) it->send(std::move(one));
  }
  // If a connection cannot be written, poll will report that it has ended.
  for (Connection& one : connections_) {
    if (one.is_open()) (void)one.link().flush();
  }
}

// The node is done; its neighbors may not have taken everything. A neighbor that dies now, with or
// without having taken it, is noticed in the next round, if any: others have taken it already, and
// all ranks must get the same result. A neighbor that gave up earlier has told why.
void Tree::deliver() {
  std::vector<pollfd> entries;
  for (;;) {
    send();
    entries.clear();
    std::vector<Node::Link> waiting;
    for (Connection& one : connections_) {
      if (!one.is_open()) continue;
      if (one.waits_for_child() || !one.link().flush()) read(&one);
      if (!one.is_open() || !(one.waits_for_child() || one.link().queued_bytes() > 0)) continue;
      waiting.push_back(one.number());
      const uint32_t events = one.waits_for_child() ? POLLIN : one.link().events() & POLLOUT;
      entries.push_back({one.link().fd(), static_cast<short>(events), 0});
    }
    node_.look(Node::Look::kChildrensReasons);
    if (waiting.empty() || !node_.status().ok()) return;
    if (now_ns() >= node_.expiry_ns()) return node_.expire_delivery(waiting);
    const Status waited = wait_for_events(&entries, node_.expiry_ns());
    if (!waited.ok()) node_.fail(waited);
  }
}

Status Tree::look() {
  do_other_work(now_ns());
  serve_acceptors();
  for (Connection& one : connections_) read(&one);
  send();
  node_.look(Node::Look::kAll);
  if (!node_.status().ok()) say_farewell();
  return node_.status();
}

Status Tree::give_up(const Status& reason) {
  // A failure on this rank may follow from one on another rank, and the news of that is on its way.
  const bool follows = reason.code() == Code::kPeerLost || reason.code() == Code::kAborted;
  const uint64_t until_ns = now_ns() + (follows ? kReasonNs : 0);
  for (;;) {
    for (Connection& one : connections_) read(&one);
    node_.look(Node::Look::kReasons);
    if (!node_.status().ok() || now_ns() >= until_ns) break;
    sleep_until(std::min(until_ns, now_ns() + kPauseNsMin));
  }
  const bool may_follow = follows || reason.code() == Code::kTimeout;
  if (!node_.status().ok() || !may_follow || is_taken_by_parent(reason)) return end(reason);
  return end(Status(reason.code(), reason.text() + node_.silence_of_parent()));
}

// Whether the parent takes the reason, which ends the connection, or tells another one. A failure
// elsewhere often follows from a parent that is stopped, and then nobody else can tell that.
bool Tree::is_taken_by_parent(const Status& reason) {
  const auto parent = std::find_if(connections_.begin(), connections_.end(),
                                   [](const Connection& one) { return one.number() == Node::kUp; });
  if (parent == connections_.end() || !parent->is_open()) return true;
  parent->link().queue({control::Frame::Kind::kStart, static_cast<uint8_t>(Message::kFailure), 0,
                        node_.round(), pack_failure(reason)});
  const uint64_t until_ns = now_ns() + kReasonNs;
  while (parent->is_open() && now_ns() < until_ns) {
    std::vector<pollfd> entries{
        {parent->link().fd(), static_cast<short>(parent->link().events()), 0}};
    if (!parent->link().flush() || !wait_for_events(&entries, until_ns).ok()) return true;
    read(&*parent);
    node_.look(Node::Look::kReasons);
    if (!node_.status().ok()) return true;
  }
  return !parent->is_open();
}

void Tree::say_farewell() {
  send();
  decide_waiting();
  const uint64_t until_ns = now_ns() + kFarewellNs;
  std::vector<pollfd> entries;
  for (;;) {
    entries.clear();
    for (Connection& one : connections_) {
      if (one.is_open() && one.link().flush() && one.link().queued_bytes() > 0) {
        entries.push_back({one.link().fd(), POLLOUT, 0});
      }
    }
    if (entries.empty() || now_ns() >= until_ns) break;
    if (!wait_for_events(&entries, until_ns).ok()) break;
  }
  for (Connection& one : connections_) hang_up(&one);
  connections_.clear();
  if (joined_ || !node_.is_root()) acceptors_.clear();
}

// Without this, ranks that come after the others have failed would wait for them until their
// deadline, and blame those that are well.
Status Tree::end_joining(const Status& status) {
  const uint64_t until_ns = std::min(self_.deadline_ns, now_ns() + kLaterRanksNs);
  // Of two ranks none is left to be told.
  if (node_.has_lost_parent() && self_.rank_count > 2) take_over_root(until_ns);
  if (node_.is_root() && status.code() != Code::kTimeout) tell_later_ranks(until_ns);
  acceptors_.clear();
  return status;
}

void Tree::tell_later_ranks(uint64_t until_ns) {
  const std::vector<Rank> missing = node_.missing();
  const auto is_told = [this](Rank rank) { return told_.count(rank) != 0; };
  while (now_ns() < until_ns && !std::all_of(missing.begin(), missing.end(), is_told)) {
    uint64_t wake_ns = until_ns;
    std::vector<pollfd> entries;
    for (const auto& acceptor : acceptors_) {
      entries.push_back({acceptor->fd(), POLLIN, 0});
      wake_ns = std::min(wake_ns, acceptor->next_ns());
    }
    if (!wait_for_events(&entries, wake_ns).ok()) return;
    serve_acceptors();
  }
}

// The root has ended without a word. The first of its children takes its place, to tell those that
// come later; where one of those was first, it is told, and tells the others.
void Tree::take_over_root(uint64_t until_ns) const {
  JoiningRank self = self_;
  self.deadline_ns = until_ns;
  TreeOptions options = options_;
  options.join = {};
  Tree heir(self, place_, options);
  if (!heir.find_place().ok()) return;
  const bool is_root = heir.node_.is_root();
  (void)heir.end(node_.status());
  if (is_root) heir.tell_later_ranks(until_ns);
}

Result<std::vector<std::string>> Tree::all_gather(std::string_view blob, uint64_t deadline_ns) {
  if (!node_.status().ok()) return node_.status();
  if (blob.size() > kBlobBytesMax) {
    return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                        blob.size(), kBlobBytesMax));
  }
  node_.start_round(blob, now_ns(), deadline_ns);
  next_here_ns_ = UINT64_MAX;
  WEIR_RETURN_IF_ERROR(work(UINT64_MAX));
  // The parent has answered all that it was sent.
  for (Connection& one : connections_) {
    if (one.number() == Node::kUp) one.forget_before(node_.round() + 1);
  }
  return node_.take_blobs();
}

}  // namespace weir::comm
