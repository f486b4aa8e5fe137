// SPDX-License-Identifier: Apache-2.0
// Bundle: the rails to one peer, and the messages of all lanes over them.
//
// A message is cut into fragments so that all rails end together, by what each has in flight and
// how fast it was measured to be (striping.h). Bytes in a socket cannot be taken back, so no rail
// is given more than it carries in a short time, and a rail of which little is known hardly
// anything (rail.h). Small messages go over the rail that is expected to deliver them first, states
// over the one that lately delivered the most.
//
// Fragments of a message whose receive was posted are read straight into its buffer. Some may
// arrive before their receive is posted: up to kAheadCount messages of up to kEagerBytes, and up to
// kLargeAheadCount of up to kLargeBytes per lane, are kept here until their receives come. All
// others wait at their sender until the receiver has reported that it has posted the receive, so
// that no lane blocks another.
//
// A sender whose receiver has posted never waits for ever:
//
// - The place of an early message is in use only while its receive is not posted: posting takes out
//   what is there, and what is still arriving of it goes to the receive's buffer. So a sender that
//   was told, on any connection, of the first g receives of a lane knows that the places of
//   messages 0 to g - 1 are free, and may send message n before its receive is known if
//   n < g + kAheadCount (kLargeAheadCount). No acknowledgement is needed for that.
// - A receiver announces a receive of more than kEagerBytes at once, and shorter ones before
//   kAheadCount / 2 of them are unannounced: it never waits for a message that its sender holds
//   back. When the two lengths differ, the sender may wait for more than that; so a receive that
//   has waited from one look at the rails to the next is announced, too.
// - Of acknowledgements, which are counted by rail, a sender needs some only when kCopiesMax small
//   messages, Rail::kFragmentsMax fragments or Rail::window_bytes() of a rail have none. A receiver
//   tells of all rails when a quarter of that is untold, and when it has all of a longer message.
// - The bytes ahead in a rail are known from this host's kernel, not from acknowledgements: they
//   decrease while the peer reads, or the rail fails.
// - What was told on a rail that fails is told again on another one.
//
// A send is complete when the peer has all of it, a small one when a copy of it was made. So when a
// rail fails, the bytes that the peer has not received over it go over the others. Both ends close
// it and tell each other how many of its fragments they have; from then on nothing more is read
// from it, so that each fragment is counted once. A rail fails if it ends or breaks, or if, while
// another one works, the peer's host does not acknowledge its bytes, or so slowly that others would
// long have delivered them. The last one is kept: when it ends, the peer is lost.
//
// At first all rails are down. They are connected at the first operation, and messages wait for the
// first of them.
//
// Operations are queued in order of posting and complete in that order. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plugins/tcp/channel.h"
#include "plugins/tcp/clock.h"
#include "plugins/tcp/control.h"
#include "plugins/tcp/rail.h"
#include "plugins/tcp/striping.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

class Bundle final : private Receiver {
 public:
  static constexpr uint64_t kEagerBytes = 8 * 1024;
  static constexpr uint32_t kAheadCount = 16;
  static constexpr uint64_t kLargeBytes = 256 * 1024;
  static constexpr uint32_t kLargeAheadCount = 4;
  // How often rails are checked, also those of a bundle that is idle.
  static constexpr uint64_t kLookNs = 50'000'000;

  using Clock = uint64_t (*)();

  explicit Bundle(uint32_t rail_count, Clock clock = monotonic_ns);
  // Closes all connections without a word.
  ~Bundle();
  Bundle(const Bundle&) = delete;
  Bundle& operator=(const Bundle&) = delete;

  // Cuts messages in fixed parts, one number above 0 for each rail, in place of measured rates.
  void fix_shares(const Shares& shares) { shares_ = shares; }

  // The connections of a rail, which are the bundle's from then on; `returns` is how often it has
  // come back.
  void attach(uint32_t rail, Stream data, Stream control, uint32_t returns);
  // Some rail has been connected.
  bool has_begun() const { return begun_; }
  // No rail will be connected: all operations fail.
  void give_up(weir_result_t result, int error_number) { fail_all(result, error_number); }

  // As Channel's.
  weir_result_t post_send(uint32_t lane, const void* data, uint64_t bytes, Op* op);
  weir_result_t post_recv(uint32_t lane, void* data, uint64_t bytes, Op* op);
  void drive();
  // The next calls of `drive` read only where an arrival was noted since the last one that had read
  // all; without this call, or after it with false, everywhere.
  void knows_arrivals(bool knows) { knows_arrivals_ = knows; }
  void note_arrival(uint32_t rail, bool on_control) {
    Link& link = links_[rail];
    (on_control ? link.has_control : link.has_data) = true;
  }
  // Whether `op` was posted here.
  static bool owns(const Op& op) { return (op.is_send & kOfBundle) != 0; }
  static bool is_send(const Op& op) { return (op.is_send & kSend) != 0; }
  static uint32_t lane_of(const Op& op) { return (op.is_send >> kLaneShift) & 7; }

  uint32_t peer = 0;  // the rank to which it leads; used by the instance
  // There is nothing to drive.
  bool idle() const;
  bool active = false;  // in the instance's list of bundles that have something
  Failure& send_failure(uint32_t lane) { return lanes_[lane].send.failure; }
  Failure& recv_failure(uint32_t lane) { return lanes_[lane].recv.failure; }

  uint32_t rail_count() const { return static_cast<uint32_t>(rails_.size()); }
  Control& control(uint32_t rail) { return controls_[rail]; }
  const Rail& rail(uint32_t rail) const { return rails_[rail]; }
  const Stream& data_stream(uint32_t rail) { return rails_[rail].stream(); }
  // Reads the peer's states and goodbyes on every rail; completes nothing.
  void listen();
  bool left() const;  // the peer has said goodbye
  bool lost() const;  // rails have led to the peer, and none does any more
  // Whether a rail that is down may come back: both ends know what the other one has of it.
  bool may_return(uint32_t rail) const;
  uint32_t returns(uint32_t rail) const { return links_[rail].returns; }
  bool is_down(uint32_t rail) const { return links_[rail].down; }
  bool any_down() const { return down_count_ > 0; }
  uint32_t up_count() const { return rail_count() - down_count_; }
  // There are data that no rail has been given yet.
  bool has_unsent() const;
  // Takes a rail out of use that works, to connect it over its own link.
  void move(uint32_t rail);
  // No rail leads to the peer, but one is being connected for the first time.
  bool awaits_first() const;
  // The peer comes back with a rail whose latest connection it never had.
  void forget_connection(uint32_t rail);
  // Rails that went down since the last call, a bit for each.
  uint32_t take_news() { return std::exchange(news_, 0); }
  // Why the latest one went down.
  const char* down_reason(uint32_t rail) const { return links_[rail].reason; }

  // Ends all operations without reporting to them. Data that were copied still leave, up to the
  // first that were not.
  void quiesce();
  // The peer is given up: all operations are forgotten, and the rails are closed for ever.
  void leave();
  // Sends what has been copied but not sent; true when nothing is left.
  bool flush();
  // The peer's host has all that was sent.
  bool is_acknowledged() const;
  // It can be reached, and only the peer can say what it has of a rail that failed.
  bool awaits_word() const;

 private:
  static constexpr uint64_t kSend = 1;
  static constexpr uint64_t kOfBundle = 2;
  static constexpr uint64_t kComplete = 4;
  static constexpr uint32_t kLaneShift = 3;  // three bits
  static constexpr uint32_t kCutShift = 8;   // of a send's bytes that were given to rails
  static constexpr uint32_t kCopiesMax = 64;

  struct Queue {
    Op* head = nullptr;
    Op* tail = nullptr;
    uint64_t posted = 0;
    Failure failure;
  };
  // A message that has begun to arrive and whose receive is not posted.
  struct Early {
    uint64_t number = 0;
    uint64_t bytes = 0;
    uint64_t got = 0;
    bool used = false;
    bool complete() const { return used && got == bytes && begun; }
    bool begun = false;  // a whole fragment is there
  };
  struct Lane {
    Queue send;
    Queue recv;
    Op* cut = nullptr;              // the next send that has bytes for the rails
    uint64_t granted = 0;           // receives that the peer has posted
    uint64_t told_posted = 0;       // our receives that the peer has been told of
    uint64_t looked_posted = 0;     // ours at the latest look
    Early small[kAheadCount];       // message k in [k % kAheadCount]
    Early large[kLargeAheadCount];  // likewise
  };
  struct Link {
    bool down = true;
    bool is_fresh = true;     // it has never been connected
    uint64_t late_ns = 0;     // when it was attached, if the peer had left before
    uint32_t late_looks = 0;  // at which it had far too much ahead, one after the other
    uint64_t ending_ns = 0;   // since when its data connection has ended; 0: it has not
    uint32_t returns = 0;
    // Something may have arrived that has not been read.
    bool has_data = true;
    bool has_control = true;
    bool peer_closed = true;  // and has told what it has received of this rail
    uint64_t told_received = 0;
    uint64_t told_bytes = 0;
    const char* reason = "";
  };

  static Op* next_of(const Op* op) { return reinterpret_cast<Op*>(op->next); }
  static void append(Queue* queue, Op* op);
  static void finish(Queue* queue);
  static void fail(Queue* queue, weir_result_t result, int error_number);
  weir_result_t take_legacy(uint32_t lane, void* data, uint64_t bytes, Op* op);
  void fail_all(weir_result_t result, int error_number);
  void begin(Op* op, Lane* lane, uint64_t data, uint64_t bytes, uint64_t flags);

  // Receiver.
  unsigned char* place(const wire::FragmentHeader& header, bool* good) override;
  void finish(const wire::FragmentHeader& header) override;
  bool hear(uint32_t rail, const wire::FragmentHeader& header) override;

  Op* find_recv(Lane* lane, uint64_t number);
  void fail_recv(uint32_t lane, uint64_t sent_bytes, uint64_t expected_bytes);
  Early& early_of(Lane* lane, uint64_t number, uint64_t bytes);
  unsigned char* early_bytes(uint32_t lane, const Early& early);
  void deliver(Lane* lane, Op* op, Early* early);
  void complete_recv(Lane* lane, Op* op);
  bool acknowledge(uint32_t rail, uint32_t count, uint64_t now_ns);
  void arrived(const Fragment& fragment);
  void take_states();
  void apply(const wire::PeerState& state);
  void correct_rates();
  void schedule(uint64_t now_ns);
  void give(Fragment fragment, Rail* rail, uint64_t now_ns);
  uint32_t find_flows(Flow* flows, uint32_t* rails) const;
  static bool takes_more(const Rail& rail);
  Rail* quickest(uint64_t bytes);
  Rail* choose(uint32_t bytes);
  Rail* choose_part(uint64_t bytes, uint32_t* part_bytes);
  Rail* choose_fixed_part(uint64_t bytes, uint32_t* part_bytes);
  void complete_send(Lane* lane, Op* op);
  bool cut(uint32_t lane_index, uint64_t now_ns);
  void push();
  void tell();
  void look_after(uint64_t now_ns);
  bool is_late(uint32_t rail) const;
  void begin_end(uint32_t rail);
  void take_down(uint32_t rail, const char* reason);
  void pass_over_connection(uint32_t rail);
  bool awaits_word(uint32_t rail) const;
  void take_back(uint32_t rail);
  bool carries(uint32_t rail) const {
    const Link& link = links_[rail];
    return !link.down && link.ending_ns == 0;
  }

  const Clock clock_;
  Shares shares_ = {};
  double given_bytes_[kRailsMax] = {};  // of parts, with fixed shares
  std::vector<Rail> rails_;
  std::vector<Link> links_;
  std::vector<Control> controls_;
  Lane lanes_[kLaneCount];
  uint32_t down_count_;
  bool begun_ = false;
  bool failed_ = false;
  bool knows_arrivals_ = false;
  bool urgent_ = false;              // the peer waits for our state
  std::optional<uint32_t> bringer_;  // the rail that lately delivered the most
  uint64_t pending_ = 0;             // operations
  uint32_t first_lane_ = 0;
  std::vector<Fragment> homeless_;  // of rails that went down, in reverse
  std::unique_ptr<unsigned char[]> copies_;
  std::vector<uint32_t> free_copies_;
  std::unique_ptr<unsigned char[]> early_;
  uint64_t now_ns_ = 0;
  uint64_t looked_ns_ = 0;
  uint64_t none_up_ns_ = 0;  // since when no rail has been up
  uint32_t drives_ = 0;
  uint32_t news_ = 0;
};

}  // namespace weir::plugins::tcp
