// SPDX-License-Identifier: Apache-2.0
// Instance: one rank's transports, of which the first carries all messages and the others stand by.
//
// For each peer there is a level: the number of the transport that carries the messages with it.
// When that one reports an error, or stands still while the peer answers over another one, the
// level rises, at both ends: each reports to the other over the new transport how many messages it
// has received over the old one, and the rest is sent again. Before that, the failed transport must
// give back the posted receives: only those of this peer, if it supports that (peer_leave of
// plugin.h), and other pairs keep using it. Otherwise it is closed, and all pairs that it carried
// continue over the same next transport. A level never decreases.
//
// On each transport the last lane is for the frames of frame.h. They are written and read from time
// to time (`tend`), and at once while a send waits for its receiver's confirmation. Frames of a
// peer with which a rank has no messages are not read: that would make connections. So a rank that
// needs an answer over another transport also tells the peer so over the control network, by a word
// of two bytes: message::kOwnKind, and the level from which on frames are sent. One thread at a
// time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plugins/hook_failover/chain.h"
#include "plugins/hook_failover/frame.h"
#include "plugins/hook_failover/stream.h"
#include "plugins/message/channels.h"
#include "plugins/message/control.h"

namespace weir::plugins::hook_failover {

// The control lane of one transport to one peer.
struct Link {
  bool broken = false;
  bool armed = false;    // in_op is posted
  bool sending = false;  // out_op is posted
  bool wanted = false;   // a frame is to be sent
  bool answered = true;  // the latest ping was answered
  uint32_t ping = 0;
  uint32_t pong = 0;
  weir_transport_op_t in_op = {};
  weir_transport_op_t out_op = {};
  unsigned char in[kFrameBytes] = {};
  unsigned char out[kFrameBytes] = {};
  weir_result_t result = WEIR_OK;  // broken: the error
  std::string why;                 // broken

  bool is_idle() const { return broken || !(wanted || sending); }
};

struct Pair {
  enum class State : uint8_t {
    kGood,
    kSuspect,  // its transport has failed, and no other has shown yet that the peer lives
    kJoining,  // this rank has come to a new transport, and the peer has not answered there
    kLost,
  };
  enum class Probe : uint8_t {
    kNone,
    kFirst,   // asked over all transports
    kSecond,  // and after a while again over those that stand by
  };
  uint32_t rank = 0;
  uint32_t level = 0;
  uint32_t told_level = 0;    // the peer has been told to look at the frames from this level on
  uint32_t called_level = 0;  // it has told this rank so
  State state = State::kGood;
  Probe probe = Probe::kNone;
  uint64_t quiet_ns = 0;  // since when nothing has moved
  bool answered_beside = false;
  uint64_t probe_ns = 0;  // when the peer was asked, or answered over another transport
  uint64_t moves = 0;     // at that time
  SendStream sends[kLanesMax];
  RecvStream recvs[kLanesMax];
  std::unique_ptr<Link[]> links;   // by transport
  weir_result_t result = WEIR_OK;  // kLost: the error of operations
  std::string why;                 // kSuspect, kLost

  // Whether this rank has sent to the peer or received from it.
  bool is_used(uint32_t lane_count) const {
    for (uint32_t lane = 0; lane < lane_count; ++lane) {
      if (sends[lane].posted() + recvs[lane].posted() != 0) return true;
    }
    return false;
  }
};

class Instance {
 public:
  using Op = hook_failover::Op;

  Instance(const weir_host_t* host, const Chain& chain, const weir_transport_config_t& config);
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  weir_result_t open(const weir_transport_config_t& config);
  weir_result_t address(unsigned char* address, size_t* bytes);
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);
  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes, Op* op);
  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op);
  weir_result_t test(Op* op);
  weir_result_t progress();
  weir_result_t peer_alive(uint32_t peer);
  void quiesce();
  // Of the transport that carries the messages with the peer at present.
  void describe_peer(uint32_t peer, char* text, size_t text_bytes) const;

 private:
  // A transport of the chain.
  struct Member {
    Instance* self = nullptr;
    const weir_transport_functions_t* functions = nullptr;
    weir_transport_t* instance = nullptr;  // null: not open yet, or left
    weir_host_t host = {};
    std::string text;            // its latest error
    bool ended_by_host = false;  // the host has told `connect` to end
  };

  uint32_t last() const { return static_cast<uint32_t>(members_.size()) - 1; }
  const char* name(uint32_t level) const { return members_[level].functions->name; }
  Route route(const Pair& pair, uint32_t lane) const {
    const Member& member = members_[pair.level];
    return {member.functions, member.instance, pair.rank, lane};
  }
  weir_result_t fail(weir_result_t code, const std::string& text) const;
  void log(int level, const std::string& text) const;
  weir_result_t connect_last(const std::vector<const unsigned char*>& addresses,
                             const std::vector<size_t>& lengths, uint64_t deadline_ns,
                             uint64_t* start_ns);
  void do_without(uint32_t level);
  weir_result_t check(const char* call, uint32_t peer, uint32_t lane, uint64_t bytes) const;
  void drive_send(Pair& pair, uint32_t lane);
  void drive_recv(Pair& pair, uint32_t lane);
  weir_result_t outcome(const Op* op) const;
  void count_call();
  void drive_lagging();
  void leave();  // done before the transports are closed

  // Whether frames are exchanged with the peer, and from which transport on.
  bool is_tended(const Pair& pair) const {
    return pair.called_level > 0 || pair.is_used(lane_count_);
  }
  uint32_t first_level(const Pair& pair) const {
    return pair.is_used(lane_count_) ? pair.level : std::max(pair.level, pair.called_level);
  }

  // takeover.cc
  void call(Pair& pair);
  void hear_call(Pair& pair);
  void tend(uint64_t now_ns);
  void poll_link(Pair& pair, uint32_t level);
  void push_link(Pair& pair, uint32_t level);
  void break_link(Pair& pair, uint32_t level, weir_result_t result);
  void take_frame(Pair& pair, uint32_t level, const Frame& frame);
  void ask(Pair& pair, uint32_t level);
  void look_after(Pair& pair, uint64_t now_ns);
  void look_for_standstill(Pair& pair, uint64_t now_ns);
  void seek(Pair& pair, uint64_t now_ns);
  bool is_waiting(const Pair& pair) const;
  // The transport of the pair has failed an operation of stream `stream`.
  void transport_failed(Pair& pair, Stream* stream, weir_result_t result);
  void suspect(Pair& pair, const std::string& why);
  void lose(Pair& pair, weir_result_t result, const std::string& why);
  // The pair goes on at `level` because of `why`.
  void rise(uint32_t level, Pair& pair, const std::string& why);
  void move(uint32_t level, Pair& pair, const std::string& why);
  void leave_member(uint32_t left, const Pair& pair, uint32_t level);
  void note_carriers();
  void resume(Pair& pair, const Frame& frame);

  const weir_host_t* host_;
  message::Channels channels_;  // one for each transport, and one for meet_host_
  weir_host_t meet_host_;       // the host, with that channel
  message::Control meeting_;    // over that channel
  pid_t owner_ = getpid();
  uint32_t rank_;
  uint32_t rank_count_;
  uint32_t lane_count_;
  uint64_t message_bytes_max_;
  bool joined_ = false;
  bool quiet_ = false;  // nothing is sent or received any more
  uint64_t still_ns_;   // a transport that has stood still for so long has failed
  uint64_t tend_ns_;    // between two calls of tend
  uint64_t tended_ns_ = 0;
  uint32_t calls_ = 0;
  bool hurry_ = false;  // tend at the next call
  bool leaving_ = false;
  bool lagging_ = false;   // some stream may lag
  uint32_t carriers_ = 1;  // a bit for each transport that carries messages with some peer
  std::vector<Member> members_;
  std::vector<Pair> pairs_;  // by rank
  std::unique_ptr<unsigned char[]> copy_memory_;
};

uint64_t monotonic_ns();

}  // namespace weir::plugins::hook_failover
