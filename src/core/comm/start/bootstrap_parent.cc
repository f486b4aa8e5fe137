// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/bootstrap_parent.h"

#include <errno.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "net/ip_socket.h"
#include "net/unix_socket.h"

namespace weir::comm {
namespace {

using State = net::Handshake::State;

// The time limit for a connection to another host and for the answer on it; then this rank tries
// again.
constexpr uint64_t kReachNsMin = 50'000'000;
constexpr uint32_t kReachDoublings = 4;
constexpr uint64_t kAnswerNs = 5'000'000'000;
// The same of the first attempt where there is another path; each further one waits twice as long,
// since a network may be slow.
constexpr uint64_t kFirstAnswerNs = 1'000'000'000;
constexpr uint32_t kAnswerDoublings = 3;

std::string name_of(const Secret& secret, const std::string& purpose) {
  const Secret name = secret.derive(fmt::format("{}, user {}", purpose, geteuid()));
  std::string text = "weir-";
  for (const unsigned char byte : name.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string who_listens(int64_t process) {
  return describe_process(process) + ", which listens for the other ranks,";
}

// The error of a handshake that did not succeed.
Status refusal(const JoiningRank& self, int64_t process, const net::Handshake& handshake) {
  const std::string who = who_listens(process);
  switch (handshake.state()) {
    case State::kOtherVersion:
      return Status(
          Code::kRefused,
          fmt::format("{} speaks bootstrap protocol version {}, rank {} version {}; all "
                      "ranks must load the same version of Weir",
                      who, handshake.other_version(), self.rank, net::Handshake::kProtocolVersion));
    case State::kMalformed:
      return unreadable(self, process);
    default:
      break;
  }
  return Status(
      Code::kRefused,
      handshake.is_refused_by_peer()
          ? fmt::format("{} does not accept the secret of rank {}", who, self.rank)
          : fmt::format("{} could not prove to rank {} that it holds the secret", who, self.rank));
}

// The connection's handshake, at most until `until_ns`, and from the proof on for `answer_ns` at
// least. No parent where the other end hung up, or is on another host and not a rank of this
// communicator; `answers` is set even then if it has sent an answer.
Result<Parent> shake_hands(const JoiningRank& self, net::Stream stream, int64_t process,
                           uint64_t until_ns, uint64_t answer_ns, bool* answers = nullptr,
                           const std::string& number = "") {
  const bool elsewhere = process == kElsewhere;
  net::Handshake::Nonce nonce;
  if (!net::fill_random(nonce.data(), nonce.size())) return system_error("getrandom");
  auto link = std::make_unique<control::Link>(
      std::move(stream), !elsewhere,
      net::Handshake(identity_of(self), nonce, net::kAnyRank, net::Subject{}));
  net::Handshake& handshake = link->handshake();
  bool has_proven = false;
  for (;;) {
    int error_number = 0;
    const control::Link::Step step = link->advance(&error_number);
    if (link->is_proven()) return Parent{std::move(link), process, number};
    if (handshake.state() == State::kChallenged) {
      if (answers != nullptr) {
        *answers = true;
        return Parent{};
      }
      const uint64_t now = now_ns();
      const uint64_t patience_us = patience_until(self.deadline_ns, now);
      handshake.set_subject({static_cast<uint32_t>(patience_us),
                             static_cast<uint32_t>(patience_us >> 32), self.instance});
      handshake.prove();
      has_proven = true;
      until_ns = std::max(until_ns, std::min(with_grace(self.deadline_ns, now), now + answer_ns));
      continue;
    }
    if (step == control::Link::Step::kEnded) {
      const bool hung_up = handshake.state() == State::kBusy;
      if (hung_up || (elsewhere && handshake.state() != State::kOtherVersion)) return Parent{};
      return refusal(self, process, handshake);
    }
    if (now_ns() >= until_ns) {
      if (!elsewhere) return unanswered(self, process, number);
      Parent none;
      if (has_proven) none.unanswered.push_back(std::move(link));
      return none;
    }
    // Bits of epoll and of poll are the same.
    std::vector<pollfd> entries{{link->fd(), static_cast<short>(link->events()), 0}};
    WEIR_RETURN_IF_ERROR(wait_for_events(self, &entries, until_ns));
  }
}

// Every second attempt is at the port that a listener tries first.
uint16_t port_of_look(const JoiningRank& self, const Place& place, uint32_t look) {
  if (look % 2 == 0) return place_port(self.secret, 0);
  const uint32_t other_count = kPlacePortCount - 1 + (place.port != 0 ? 1 : 0);
  const uint32_t index = 1 + look / 2 % other_count;
  return index < kPlacePortCount ? place_port(self.secret, index) : place.port;
}

// Moves those streams out of `streams` whose connection is made, or has failed, by `until_ns`.
Status take_connected(const JoiningRank& self, std::vector<net::Stream>* streams, uint64_t until_ns,
                      std::vector<net::Stream>* connected) {
  std::vector<pollfd> entries;
  for (const net::Stream& one : *streams) entries.push_back({one.fd(), POLLOUT, 0});
  WEIR_RETURN_IF_ERROR(wait_for_events(self, &entries, until_ns));
  std::vector<net::Stream> left;
  for (size_t i = 0; i < entries.size(); ++i) {
    (entries[i].revents == 0 ? left : *connected).push_back(std::move((*streams)[i]));
  }
  *streams = std::move(left);
  return Status();
}

// Connects to all addresses at once, that of number `first` before the others, and does the
// handshake with those that answer, one after the other.
Result<Parent> connect_to_port(const JoiningRank& self,
                               const std::vector<net::IpAddress>& addresses, uint16_t port,
                               const net::TlsContext* tls, uint64_t reach_ns, uint32_t first,
                               bool* answers = nullptr) {
  const uint64_t until_ns = std::min(self.deadline_ns, now_ns() + reach_ns);
  const uint64_t answer_ns = answer_patience_ns(self, addresses.size());
  std::vector<std::unique_ptr<control::Link>> unanswered;
  std::vector<net::Stream> streams;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const int fd = net::begin_connect(addresses[(first + i) % addresses.size()], port, {});
    if (fd >= 0) streams.emplace_back(fd);
  }
  while (!streams.empty() && now_ns() < until_ns) {
    std::vector<net::Stream> connected;
    WEIR_RETURN_IF_ERROR(take_connected(self, &streams, until_ns, &connected));
    for (size_t i = 0; i < connected.size(); ++i) {
      net::Stream stream = std::move(connected[i]);
      if (net::connect_error(stream.fd()) != 0) continue;
      if (tls != nullptr && !stream.secure(*tls, net::Stream::Role::kClient)) {
        return Status(Code::kNoMemory, "no memory for TLS");
      }
      // At a port of the network another program may listen, and send nothing; or a network takes
      // connections and loses what is sent on them. Then the next address has its turn while the
      // listener still waits there.
      const uint64_t patience_ns = i + 1 < connected.size() ? reach_ns : answer_ns;
      const uint64_t end_ns = answers != nullptr ? until_ns
                                                 : std::min(with_grace(self.deadline_ns, now_ns()),
                                                            now_ns() + patience_ns);
      Result<Parent> found =
          shake_hands(self, std::move(stream), kElsewhere, end_ns, answer_ns, answers);
      if (!found.ok()) return found;
      Parent& one = found.value();
      std::move(one.unanswered.begin(), one.unanswered.end(), std::back_inserter(unanswered));
      if (one.link != nullptr || (answers != nullptr && *answers)) {
        one.unanswered = std::move(unanswered);
        return found;
      }
    }
  }
  Parent none;
  none.unanswered = std::move(unanswered);
  return none;
}

}  // namespace

std::string socket_name(const Secret& secret) { return name_of(secret, "bootstrap name"); }

std::string socket_name(const Secret& secret, Rank rank) {
  return name_of(secret, fmt::format("bootstrap name of rank {}", rank));
}

net::Identity identity_of(const JoiningRank& self) {
  return {net::key_for(self.secret.bytes.data(), self.secret.bytes.size(), "bootstrap"), 0,
          self.rank, self.rank_count, true};
}

std::unique_ptr<const net::TlsContext> make_tls(const Secret& secret, std::string* reason) {
  const Secret key = secret.derive("bootstrap tls");
  return net::TlsContext::make(key.bytes.data(), key.bytes.size(),
                               fmt::format("bootstrap {:016x}", secret.public_id()), reason);
}

uint64_t answer_patience_ns(const JoiningRank& self, size_t address_count) {
  if (address_count <= 1) return kAnswerNs;
  return kFirstAnswerNs << std::min(self.unanswered_count, kAnswerDoublings);
}

Status unanswered(const JoiningRank& self, int64_t process, const std::string& number) {
  return Status(Code::kTimeout,
                fmt::format("timed out: {}{} listens for the other ranks but does not "
                            "answer rank {}; is it stopped?",
                            describe_process(process), number, self.rank));
}

Status unreadable(const JoiningRank& self, int64_t process) {
  return Status(Code::kRefused,
                fmt::format("{} does not speak the bootstrap protocol (seen by rank {})",
                            who_listens(process), self.rank));
}

Result<Parent> connect_locally(const JoiningRank& self, const std::string& name,
                               const std::string& number) {
  const int fd = net::connect_locally(name);
  if (fd < 0) {
    if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return Parent{};
    return system_error("connect to the socket of the first rank");
  }
  net::Stream stream(fd);
  pid_t process = 0;
  uid_t user = 0;
  if (!net::peer_process(fd, &process, &user)) return system_error("getsockopt(SO_PEERCRED)");
  if (user != geteuid()) {
    return Status(
        Code::kRefused,
        fmt::format("{} belongs to user {}, rank {} to user {}; all ranks must run as the "
                    "same user",
                    who_listens(process), user, self.rank, geteuid()));
  }
  return shake_hands(self, std::move(stream), process, with_grace(self.deadline_ns, now_ns()),
                     kAnswerNs, nullptr, number);
}

Result<Parent> connect_to_place(const JoiningRank& self, const Place& place, uint32_t look,
                                const net::TlsContext* tls) {
  // Every second look is at the usual port: of these, each begins with another address.
  return connect_to_port(self, place.addresses, port_of_look(self, place, look), tls,
                         kReachNsMin << std::min(look / 4, kReachDoublings), look / 2);
}

Result<Parent> connect_to(const JoiningRank& self, const ChildAddress& address,
                          const net::TlsContext* tls) {
  if (address.place.host != 0 && address.place.host == host_tag()) {
    return connect_locally(self, socket_name(self.secret, address.rank),
                           fmt::format(" (rank {})", address.rank));
  }
  return connect_to_port(self, address.place.addresses, address.place.port, tls,
                         kReachNsMin << kReachDoublings, 0);
}

Result<bool> is_tls_asked() {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok()) return settings.status();
  return !settings.value().tls.empty() && settings.value().tls != net::name_of(net::TlsMode::kOff);
}

bool is_answered(const Secret& secret, const Place& place, uint64_t deadline_ns) {
  const net::Stream local(net::connect_locally(socket_name(secret)));
  if (local.is_open()) return true;
  const Result<bool> tls = is_tls_asked();
  std::string reason;
  std::unique_ptr<const net::TlsContext> context;
  if (tls.ok() && tls.value()) {
    context = make_tls(secret, &reason);
    if (context == nullptr) return false;
  }
  // Another host: a challenge is a sufficient answer, and costs the process that listens there
  // nothing.
  bool answers = false;
  for (uint32_t i = 0; i < kPlacePortCount && !answers && now_ns() < deadline_ns; ++i) {
    (void)connect_to_port({secret, 0, 0, deadline_ns}, place.addresses, place_port(secret, i),
                          context.get(), 4 * kReachNsMin, 0, &answers);
  }
  return answers;
}

Status wait_for_events(std::vector<pollfd>* entries, uint64_t until_ns) {
  constexpr uint64_t kNsPerSecond = 1'000'000'000;
  const uint64_t now = now_ns();
  const uint64_t left = until_ns > now ? until_ns - now : 0;
  const timespec time = {static_cast<time_t>(left / kNsPerSecond),
                         static_cast<long>(left % kNsPerSecond)};
  if (ppoll(entries->data(), entries->size(), &time, nullptr) >= 0) return Status();
  if (errno != EINTR) return system_error("ppoll");
  for (pollfd& entry : *entries) entry.revents = 0;
  return Status();
}

Status wait_for_events(const JoiningRank& self, std::vector<pollfd>* entries, uint64_t until_ns) {
  if (!self.meanwhile) return wait_for_events(entries, until_ns);
  for (;;) {
    self.meanwhile();
    WEIR_RETURN_IF_ERROR(wait_for_events(entries, std::min(until_ns, now_ns() + kOtherWorkNs)));
    const bool any = std::any_of(entries->begin(), entries->end(),
                                 [](const pollfd& entry) { return entry.revents != 0; });
    if (any || now_ns() >= until_ns) return Status();
  }
}

}  // namespace weir::comm
