// SPDX-License-Identifier: Apache-2.0
// SocketNetwork: the control network (network.h) over Unix sockets and TCP. Its connections are
// proven (net/handshake.h) and chosen by overlay.h; the thread of reactor.h serves them. One lock
// per network, which is never held while anything waits. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/base/process_generation.h"
#include "core/control/acceptor.h"
#include "core/control/network.h"
#include "core/control/reactor.h"

namespace weir::control {

class SocketNetwork final : public Network, private Reactor::Client {
 public:
  static Result<std::unique_ptr<SocketNetwork>> make(const NetworkConfig& config);
  ~SocketNetwork() override;
  SocketNetwork(const SocketNetwork&) = delete;
  SocketNetwork& operator=(const SocketNetwork&) = delete;

  Status leave_host() override;
  std::string address() const override;
  Status join(const std::vector<std::string>& addresses, uint64_t deadline_ns,
              const StillPossible& still_possible) override;
  Status set_address(Rank rank, const std::string& address) override;

  void show(std::string_view notice) override;
  uint64_t change_count() const override { return change_count_.load(std::memory_order_acquire); }
  bool read(Rank rank, uint32_t* version, std::string* notice) const override;
  Life life(Rank rank) const override {
    return static_cast<Life>(lives_[rank].load(std::memory_order_acquire) & ~kCutOff);
  }
  bool is_cut_off(Rank rank) const override {
    return (lives_[rank].load(std::memory_order_acquire) & kCutOff) != 0;
  }
  void collect_unreached(std::vector<Unreached>* ranks) const override;
  void leave() override;

  Status send(Rank peer, uint8_t channel, std::string_view message) override;
  bool receive(Rank peer, uint8_t channel, std::string* message) override;
  Status flush(Rank peer, uint64_t deadline_ns) override;

  bool shares_host(Rank rank) const override;
  Status offer(const Key& key, int fd) override;
  void withdraw(const Key& key) override;
  Result<int> fetch(Rank peer, const Key& key, uint64_t deadline_ns,
                    const StillPossible& still_possible) override;

  Status listen(int listener) override;
  void connect(Rank peer, const Purpose& purpose, std::vector<Path> paths,
               uint64_t deadline_ns) override;
  bool connected(uint8_t channel, Connected* connected) override;

  net::Mac pair_key(Rank peer, std::string_view purpose) const override;
  std::string describe(Rank peer) const override;
  net::IpAddress own_address(Rank peer) const override;

  // For tests and figures.
  size_t link_count() const;
  size_t descriptor_count() const;
  uint64_t frame_count() const { return frame_count_.load(std::memory_order_relaxed); }

 private:
  // An address at which a rank may be reached.
  struct Candidate {
    bool is_local = false;
    net::IpAddress address{};
    uint16_t port = 0;
    net::IpAddress source{};
    std::string why{};
    std::string device{};
  };
  enum class Aim : uint8_t {
    kConnect,  // there is no link yet, or a connection of a transport is wanted
    kReroute,  // the peer's host does not answer over the link
    kResume,   // the link broke: the rank has ended, or a new link takes the place of that one
    kVerify,   // what came over the link was no peer's: does the rank still live?
  };
  // Attempts to make a link to a rank, or a connection of a transport.
  struct Dial {
    Aim aim = Aim::kConnect;
    std::vector<Candidate> candidates;
    size_t next = 0;                // candidate to be tried next
    uint64_t next_ns = 0;           // when
    uint32_t round_count = 0;       // all candidates were tried
    int proving = -1;               // connection that has answered; -1: none
    uint64_t proving_ns = 0;        // since when
    uint32_t unanswered_count = 0;  // attempts that were ended because no answer came
    bool has_answered = false;
    std::string refusal;  // why the latest one that answered did not accept; "": none
    uint64_t give_up_ns = UINT64_MAX;
    std::string failure;      // of the latest attempt
    std::string passed_over;  // failures of the first round
  };
  // A connection, from its beginning to its end.
  struct Connection {
    std::unique_ptr<Link> link;
    bool used = false;
    bool connecting = false;  // client, TCP: not yet connected
    bool is_client = false;
    Rank peer = 0;           // client; server: from the proof on
    net::Subject subject{};  // as peer
    size_t candidate = 0;    // client
    net::IpAddress from{};
    uint32_t generation = 0;    // of this place in the list
    uint32_t events = 0;        // that epoll waits for
    uint64_t begun_ns = 0;      // client
    uint32_t number = 0;        // of links: how many this rank and the peer have made
    uint64_t made_ns = 0;       // of links
    bool confirmed = false;     // of links: the peer has this link, and messages may leave
    uint64_t used_ns = 0;       // when anything but states was last sent or received
    bool closing = false;       // kBye was sent or received; nothing more is queued
    bool heard_bye = false;     // kBye was received: this end closes once all has left
    std::vector<bool> dirty{};  // ranks whose state is to be sent
    std::vector<Rank> dirty_ranks{};
    uint64_t unacknowledged_ns = 0;
    std::string route;
  };
  struct Message {
    uint8_t channel = 0;
    std::string bytes;
  };
  struct Peer {
    std::string notice;
    uint32_t version = 0;
    Life told = Life::kHere;  // the life that is passed on
    int link = -1;            // connection; -1: none
    int process = -1;         // pidfd
    bool is_neighbor = false;
    uint32_t link_count = 0;     // links that were made
    uint64_t reroute_ns = 0;     // not before
    uint32_t reroute_count = 0;  // since the peer's host last answered
    std::deque<Message> outbox;  // messages that wait for a link
    std::deque<Message> kept;    // those sent last, which the peer may not have received
    uint32_t sent_count = 0;     // messages, modulo 2^32
    uint32_t received_count = 0;
    uint32_t told_count = 0;  // of received_count, as the peer knows it
    size_t untold_bytes = 0;
    std::deque<Message> inbox;
    std::vector<Key> wants;  // descriptors that it has requested and that are not offered yet
  };
  struct Fetch {
    Rank peer;
    Key key;
    int fd = -1;
    bool sent = false;
    bool dropped = false;  // the kernel had no room for it
    Rank lacking = 0;      // of `dropped`: in the process of this rank
  };

  // Of epoll: what the acceptor waits for, a rank whose process is watched, or a connection (its
  // place in the list, and the generation of that place from bit 16 on).
  static constexpr uint32_t kAcceptorToken = 1u << 31;
  static constexpr uint32_t kProcessToken = 1u << 30;
  static constexpr uint8_t kCutOff = 0x80;  // in lives_
  static constexpr size_t kConnectionsMax = 1u << 16;
  static constexpr size_t kInboxMax = 1024;  // messages of a rank that were not received yet
  static constexpr size_t kWantsMax = 64;
  static constexpr size_t kArrivedMax = 65536;  // connections that no transport has taken

  explicit SocketNetwork(const NetworkConfig& config);
  // The rank to which a connection leads, and its purpose.
  using Target = std::pair<Rank, net::Subject>;
  // Of every link; its claim has the link's number as second word.
  static constexpr net::Subject kLinkSubject{};
  static bool is_of_link(const net::Subject& subject) { return subject[0] == kLinkSubject[0]; }

  Status unpack(Rank rank, const std::string& address, NetworkAddress* to) const;
  void close_unneeded();
  Status listen_here();
  Status listen_for_hosts();
  Status flush_locked(Rank peer, uint64_t deadline_ns, std::unique_lock<std::mutex>* lock);
  void on_events(uint32_t token, uint32_t events) override;
  void on_time(uint64_t now_ns) override;

  // ---- With the lock held:
  void schedule(uint64_t time_ns);
  int make_connection();
  void watch(int index);
  void close_connection(int index);
  void take_in(std::vector<Acceptor::Arrival> arrivals);
  void take_in(Acceptor::Arrival arrival);
  void find_candidates(Rank peer, std::vector<Candidate>* candidates) const;
  void dial(Rank peer, Aim aim);
  void go_on_dialing(uint64_t now_ns);
  void begin_proving(Dial* dial, int index);
  void reroute(int index, uint64_t now_ns);
  void end_reroute(Rank peer);
  void replace_link(Rank rank, bool has_misbehaved, uint64_t begin_ns);
  void end_link_dial(Rank peer);
  void cut_off(Rank peer);
  const Dial* dial_of(Rank peer, const net::Subject& subject = kLinkSubject) const;
  Dial* dial_of(Rank peer, const net::Subject& subject = kLinkSubject);
  void end_dial(Rank peer, const net::Subject& subject = kLinkSubject);
  void dial_next(const Target& target, uint64_t now_ns);
  void give_up(const Target& target, const Status& status);
  void end_attempts(const Target& target, int but);
  void attempt_failed(int index, int error_number);
  void serve(int index, uint32_t events);
  void proven(int index);
  bool may_link(Rank rank, uint32_t number) const;
  void queue_message(int index, Message message);
  void tell_received(int index);
  bool take_received(int index, uint32_t count);
  void confirm(int index);
  void hand_over(int index);
  void set_life(Rank rank, Life life, uint8_t flags = 0);
  enum class End : uint8_t { kInOrder, kBroken, kMisbehaved };
  void link_ended(int index, End end);
  void mend_ring();
  bool is_missing(Rank rank) const { return peers_[rank].is_neighbor && !has_link(rank); }
  bool take_frame(int index, const Frame& frame);
  void merge(int from, Rank rank, uint32_t version, std::string_view notice, Life life);
  void mark(Rank rank, int but);
  void push(int index);
  void push_all();
  void say_descriptor(int index, const Key& key);
  void lost(Rank peer);
  void watch_process(int index);
  static net::Subject subject_of(const Purpose& purpose);
  static Purpose purpose_of(const net::Subject& subject);
  bool has_link(Rank rank) const { return peers_[rank].link >= 0; }
  std::string missing_text() const;
  Status refusal_of(Rank rank) const;

  const NetworkConfig config_;
  const MakingProcess maker_;
  net::Identity identity_;
  Mac32 nonce_{};
  std::unique_ptr<const net::TlsContext> tls_;
  NetworkAddress own_;
  std::vector<net::Interface> interfaces_;

  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::unique_ptr<Acceptor> acceptor_;
  std::vector<NetworkAddress> addresses_;
  std::vector<Rank> neighbors_;  // those with is_neighbor
  std::map<Target, Dial> dials_;
  std::set<Target> made_;  // connections of transports that this end has made to lower ranks
  std::deque<std::pair<net::Subject, Connected>> arrived_;
  std::atomic<size_t> arrived_count_{0};
  std::deque<Connection> connections_;  // indices of its elements do not change
  std::vector<int> free_;
  std::vector<Peer> peers_;
  std::unique_ptr<std::atomic<uint8_t>[]> lives_;
  std::atomic<uint64_t> change_count_{0};
  std::atomic<uint64_t> frame_count_{0};
  std::map<Key, int> offers_;
  std::list<Fetch> fetches_;
  uint32_t emptying_ = 0;  // threads that wait until what is queued has been sent
  bool joined_ = false;
  bool out_of_descriptors_ = false;  // the latest attempt to connect found none
  bool left_ = false;
  std::unique_ptr<Reactor::Registration> reactor_;
};

}  // namespace weir::control
