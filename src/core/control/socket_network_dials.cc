// SPDX-License-Identifier: Apache-2.0
// The network's attempts to connect: links, and connections of transports. Called with the lock
// held.
#include <errno.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/control/socket_network.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::control {
namespace {

// The delay before the next address of a rank is tried while the previous one does not answer.
constexpr uint64_t kStaggerNs = 50'000'000;
// The same where a socket of this host has taken the connection: its owner, which may serve many
// ranks, answers when its turn comes, and more connections would only delay that.
constexpr uint64_t kLocalStaggerNs = 1'000'000'000;
// Between rounds over all addresses, growing with their number.
constexpr uint64_t kRetryNsMin = 2'000'000;
constexpr uint64_t kRetryNsMax = 100'000'000;
// How long a rank whose link has ended may take to answer, while no rank says that it has ended.
constexpr uint64_t kVerifyNs = 1'500'000'000;
// The same once it has answered, since only the way to it is bad.
constexpr uint64_t kResumeNs = 10'000'000'000;
// So long another path is sought for a link over which the peer's host does not answer, and again
// after a pause that doubles.
constexpr uint64_t kRerouteNs = 2'000'000'000;
constexpr uint64_t kReroutePauseNs = 1'000'000'000;
constexpr uint32_t kReroutePauseDoublings = 5;
// A path may fail at any time: how long the first attempt at an address waits for the peer's host,
// for the peer, and for its word about the proof. Each further one waits twice as long, since a
// network may be slow.
constexpr uint64_t kHostAnswersNs = 1'000'000'000;
constexpr uint64_t kPeerAnswersNs = 5'000'000'000;
constexpr uint64_t kWelcomeNs = 1'000'000'000;
constexpr uint32_t kPatienceDoublings = 5;

uint64_t patience_ns(uint64_t first_ns, uint32_t failed_count) {
  return first_ns << std::min(failed_count, kPatienceDoublings);
}

uint64_t retry_after_ns(uint32_t round_count) {
  return std::min(kRetryNsMax, kRetryNsMin << std::min(round_count, 6u));
}

std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

// "": this process can open another descriptor.
std::string lack_of_descriptors() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return errno == EMFILE || errno == ENFILE ? reason_of(errno) : "";
  close(fd);
  return "";
}

}  // namespace

// The most promising ones first.
void SocketNetwork::find_candidates(Rank peer, std::vector<Candidate>* candidates) const {
  const NetworkAddress& to = addresses_[peer];
  const bool here = own_.host.known() && to.host == own_.host;
  if (here) candidates->push_back({true, {}, 0, {}, "over a Unix socket"});
  std::vector<Candidate> near;
  std::vector<Candidate> others;
  std::vector<uint32_t> near_speed;
  std::vector<Offer> offers = to.offers;
  std::stable_sort(offers.begin(), offers.end(),
                   [](const Offer& a, const Offer& b) { return a.speed_mbits > b.speed_mbits; });
  for (const Offer& offer : offers) {
    Candidate one;
    one.address = offer.address;
    one.port = offer.port;
    if (offer.is_loopback) {
      if (!here) continue;
      one.why = "loopback";
      others.push_back(one);
      continue;
    }
    for (const net::Interface& own : interfaces_) {
      if (!own.is_loopback && !one.source.valid() &&
          net::same_subnet(own.address, offer.address, own.prefix_bits)) {
        one.source = own.address;
        one.why = "over " + own.name + ": same subnet";
      }
    }
    const bool is_near = one.source.valid();
    if (!is_near) one.why = "by routing";
    (is_near ? near : others).push_back(one);
  }
  candidates->insert(candidates->end(), near.begin(), near.end());
  candidates->insert(candidates->end(), others.begin(), others.end());
}

void SocketNetwork::dial(Rank peer, Aim aim) {
  Dial dial;
  find_candidates(peer, &dial.candidates);
  const uint64_t now = now_ns();
  dial.next_ns = now;
  dial.aim = aim;
  if (aim != Aim::kConnect) {
    dial.give_up_ns = now + (aim == Aim::kReroute ? kRerouteNs : kVerifyNs);
  }
  if (dial.candidates.empty()) {
    dial.failure =
        "it is on another host and offers no address that this rank can reach; is its network up, "
        "and does WEIR_IFNAME allow it?";
    dial.next_ns = UINT64_MAX;
    dial.refusal = dial.failure;
    dial.round_count = 1;
  }
  dials_[{peer, kLinkSubject}] = std::move(dial);
  schedule(now);
}

// The link stays until another one is there.
void SocketNetwork::reroute(int index, uint64_t now) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank rank = one.peer;
  Peer& peer = peers_[rank];
  if (peer.link != index || now < peer.reroute_ns || dial_of(rank) != nullptr || left_ ||
      addresses_.empty() || life(rank) != Life::kHere) {
    return;
  }
  peer.reroute_ns = now + (kReroutePauseNs << std::min(peer.reroute_count, kReroutePauseDoublings));
  ++peer.reroute_count;
  const net::IpAddress stalled = net::peer_address(one.link->fd());
  dial(rank, Aim::kReroute);
  Dial& dial = *dial_of(rank);
  std::erase_if(dial.candidates,
                [&](const Candidate& each) { return !each.is_local && each.address == stalled; });
  if (dial.candidates.empty()) end_dial(rank);
}

// The peer's host has answered over the link after all.
void SocketNetwork::end_reroute(Rank peer) {
  const Dial* const dial = dial_of(peer);
  peers_[peer].reroute_count = 0;
  if (dial != nullptr && dial->aim == Aim::kReroute && dial->proving < 0) end_link_dial(peer);
}

// Of a rank whose link has ended. `begin_ns`: when the first attempt is made.
void SocketNetwork::replace_link(Rank rank, bool has_misbehaved, uint64_t begin_ns) {
  const Aim aim = has_misbehaved ? Aim::kVerify : Aim::kResume;
  const uint64_t now = now_ns();
  if (Dial* const there = dial_of(rank); there != nullptr) {
    there->aim = aim;
    there->give_up_ns = now + (there->has_answered ? kResumeNs : kVerifyNs);
    return schedule(there->give_up_ns);
  }
  dial(rank, aim);
  Dial& made = *dial_of(rank);
  // If none of its addresses can be reached from here, it has time to connect by itself.
  if (made.candidates.empty()) return;
  made.next_ns = begin_ns;
  if (begin_ns <= now) return dial_next({rank, kLinkSubject}, now);
  schedule(made.next_ns);
}

// The connection has answered, and is the one that both ends mean.
void SocketNetwork::begin_proving(Dial* dial, int index) {
  const uint64_t now = now_ns();
  dial->proving = index;
  dial->proving_ns = now;
  if (dial->aim == Aim::kResume && !dial->has_answered) dial->give_up_ns = now + kResumeNs;
  dial->has_answered = true;
  schedule(std::min(dial->give_up_ns, now + patience_ns(kWelcomeNs, dial->unanswered_count)));
}

// No link has come of it in time.
void SocketNetwork::end_link_dial(Rank peer) {
  const Dial& dial = *dial_of(peer);
  const Aim aim = dial.aim;
  const bool has_answered = dial.has_answered;
  end_dial(peer);
  end_attempts({peer, kLinkSubject}, -1);
  if (aim == Aim::kReroute) return;
  if (aim != Aim::kResume || !has_answered) return lost(peer);
  cut_off(peer);
}

// It lives, and only the way to it was lost: for this rank it is lost for good.
void SocketNetwork::cut_off(Rank peer) {
  set_life(peer, Life::kLost, kCutOff);
  change_count_.fetch_add(1, std::memory_order_release);
  changed_.notify_all();
}

// Null: nothing is being tried.
const SocketNetwork::Dial* SocketNetwork::dial_of(Rank peer, const net::Subject& subject) const {
  const auto it = dials_.find({peer, subject});
  return it == dials_.end() ? nullptr : &it->second;
}

SocketNetwork::Dial* SocketNetwork::dial_of(Rank peer, const net::Subject& subject) {
  const auto it = dials_.find({peer, subject});
  return it == dials_.end() ? nullptr : &it->second;
}

void SocketNetwork::end_dial(Rank peer, const net::Subject& subject) {
  dials_.erase({peer, subject});
}

void SocketNetwork::end_attempts(const Target& target, int but) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& other = connections_[i];
    if (static_cast<int>(i) != but && other.used && other.is_client && other.peer == target.first &&
        other.subject == target.second && !other.link->is_proven()) {
      close_connection(static_cast<int>(i));
    }
  }
}

void SocketNetwork::dial_next(const Target& target, uint64_t now) {
  const Rank peer = target.first;
  Dial& dial = *dial_of(peer, target.second);
  const size_t index = dial.next;
  const Candidate& candidate = dial.candidates[index];
  if (++dial.next == dial.candidates.size()) {
    dial.next = 0;
    ++dial.round_count;
    dial.next_ns = now + retry_after_ns(dial.round_count);
  } else {
    dial.next_ns = now + kStaggerNs;
  }
  // One attempt at a time for each address.
  for (size_t i = 0; i < connections_.size(); ++i) {
    const Connection& one = connections_[i];
    if (!one.used || !one.is_client || one.peer != peer || one.subject != target.second ||
        one.candidate != index || one.link->is_proven()) {
      continue;
    }
    const bool host_answers = !one.connecting && one.link->is_acknowledged();
    const uint64_t first_ns = host_answers ? kPeerAnswersNs : kHostAnswersNs;
    if (candidate.is_local || now < one.begun_ns + patience_ns(first_ns, dial.unanswered_count)) {
      return;
    }
    ++dial.unanswered_count;
    close_connection(static_cast<int>(i));
  }
  net::Handshake::Nonce nonce;
  int fd = -1;
  if (net::fill_random(nonce.data(), nonce.size())) {
    fd = candidate.is_local ? net::connect_locally(socket_name(addresses_[peer].nonce))
                            : net::begin_connect(candidate.address, candidate.port,
                                                 candidate.source, candidate.device.c_str());
  }
  const int made = fd < 0 ? -1 : make_connection();
  if (made < 0) {
    const int error_number = errno;
    if (fd >= 0) close(fd);
    dial.failure = reason_of(error_number);
    const bool is_out_of_descriptors = error_number == EMFILE || error_number == ENFILE;
    if (target.second != kLinkSubject && is_out_of_descriptors) {
      return give_up(target, Status(Code::kSystem, reason_of(error_number)));
    }
    out_of_descriptors_ = is_out_of_descriptors;
    // On this host, a socket at which no process listens shows that the rank has ended.
    const bool verifies = dial.aim == Aim::kResume || dial.aim == Aim::kVerify;
    if (verifies && error_number == ECONNREFUSED) {
      end_dial(peer);
      return lost(peer);
    }
    if (dial.next != 0) dial.next_ns = now;
    return;
  }
  out_of_descriptors_ = false;
  Connection& one = connections_[static_cast<size_t>(made)];
  net::Stream stream(fd);
  pid_t pid = 0;
  const bool good = candidate.is_local
                        ? net::peer_of_same_user(fd, &pid)
                        : tls_ == nullptr || stream.secure(*tls_, net::Stream::Role::kClient);
  one.is_client = true;
  one.begun_ns = now;
  one.peer = peer;
  one.subject = target.second;
  one.candidate = index;
  one.connecting = !candidate.is_local;
  one.link = std::make_unique<Link>(std::move(stream), candidate.is_local,
                                    net::Handshake(identity_, nonce, peer, target.second));
  if (!good) return attempt_failed(made, candidate.is_local ? EPERM : ENOMEM);
  if (candidate.is_local || candidate.address.is_loopback()) dial.next_ns = now + kLocalStaggerNs;
  watch(made);
  if (candidate.is_local) serve(made, EPOLLOUT);
}

// `error_number`: of the system, or 0 where the handshake tells why.
void SocketNetwork::attempt_failed(int index, int error_number) {
  const Connection& one = connections_[static_cast<size_t>(index)];
  const Rank peer = one.peer;
  const Target target{peer, one.subject};
  Dial* const dial = dial_of(peer, one.subject);
  std::string failure;
  bool refused = false;
  const net::Handshake& handshake = one.link->handshake();
  const net::Stream& stream = one.link->stream();
  // Inside TLS a wrong secret fails before any data is exchanged.
  const bool no_tls = stream.failure() == net::Stream::Failure::kRefused;
  switch (no_tls ? net::Handshake::State::kRefused : handshake.state()) {
    case net::Handshake::State::kRefused:
      refused = true;
      failure = fmt::format(
          "does not accept the secret, communicator or rank count of rank {}, or it is another "
          "rank{}",
          config_.rank, no_tls ? " (" + stream.reason() + ")" : "");
      break;
    case net::Handshake::State::kOtherVersion:
      refused = true;
      failure =
          fmt::format("speaks version {} of the protocol, rank {} version {}",
                      handshake.other_version(), config_.rank, net::Handshake::kProtocolVersion);
      break;
    case net::Handshake::State::kMalformed:
      failure = "does not speak Weir's protocol";
      break;
    default:
      failure = !stream.reason().empty() ? stream.reason() : reason_of(error_number);
  }
  std::string where;
  // A port may belong to another network by now: its answer says nothing about a rank of this host,
  // which has a Unix socket with a name of its own.
  bool is_sure = true;
  if (dial != nullptr && one.candidate < dial->candidates.size()) {
    const Candidate& candidate = dial->candidates[one.candidate];
    if (!candidate.is_local) where = net::to_string(candidate.address, candidate.port) + " ";
    is_sure = candidate.is_local || !dial->candidates.front().is_local;
  }
  const bool gone = is_sure && (error_number == ECONNREFUSED || refused ||
                                handshake.state() == net::Handshake::State::kMalformed);
  close_connection(index);
  if (dial == nullptr) return;
  dial->failure = where + failure;
  if (dial->round_count <= 1 && dial->candidates.size() > 1) {
    dial->passed_over += (dial->passed_over.empty() ? "" : "; ") + dial->failure;
  }
  if (refused && is_sure) dial->refusal = dial->failure;
  if (dial->proving == index) dial->proving = -1;
  if (dial->aim == Aim::kResume && refused && dial->has_answered) return end_link_dial(peer);
  if ((dial->aim == Aim::kResume || dial->aim == Aim::kVerify) && gone) {
    end_dial(peer);
    return lost(peer);
  }
  // The next attempt may begin at once.
  const uint64_t now = now_ns();
  dial->next_ns =
      dial->next != 0 ? now : std::min(dial->next_ns, now + retry_after_ns(dial->round_count));
  schedule(dial->next_ns);
}

void SocketNetwork::go_on_dialing(uint64_t now) {
  // A copy: attempts may end, or begin others.
  std::vector<Target> targets;
  for (const auto& [target, dial] : dials_) targets.push_back(target);
  for (const Target& target : targets) {
    const auto& [peer, subject] = target;
    const Dial* dial = dial_of(peer, subject);
    if (dial == nullptr) continue;
    if (now >= dial->give_up_ns && subject == kLinkSubject) {
      end_link_dial(peer);
      continue;
    }
    const bool waits_for_welcome = dial->proving >= 0 && subject == kLinkSubject;
    if (waits_for_welcome &&
        now >= dial->proving_ns + patience_ns(kWelcomeNs, dial->unanswered_count)) {
      ++dial_of(peer)->unanswered_count;
      attempt_failed(dial->proving, ETIMEDOUT);
    }
    if (now >= dial->give_up_ns) {
      // A rank that is linked with this one does not refuse it; another host with the same address
      // may.
      const bool is_refused = !dial->refusal.empty();
      const std::string failure = is_refused              ? dial->refusal
                                  : dial->failure.empty() ? "no answer"
                                                          : dial->failure;
      // Other ranks of this process may have taken the last one.
      const std::string lack = lack_of_descriptors();
      give_up(target, !lack.empty() ? Status(Code::kSystem, fmt::format("{} ({})", lack, failure))
                      : is_refused  ? Status(Code::kRefused, "timed out: " + failure)
                                    : Status(Code::kTimeout, "timed out: " + failure));
      continue;
    }
    if (now >= dial->next_ns && dial->proving < 0) dial_next(target, now);
    // A refusal by a rank that is being verified ends the dialing.
    dial = dial_of(peer, subject);
    if (dial == nullptr) continue;
    const uint64_t next_ns =
        dial->proving < 0 ? dial->next_ns
        : subject == kLinkSubject
            ? dial->proving_ns + patience_ns(kWelcomeNs, dial->unanswered_count)
            : UINT64_MAX;
    schedule(std::min(next_ns, dial->give_up_ns));
  }
}

}  // namespace weir::control
