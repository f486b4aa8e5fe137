// SPDX-License-Identifier: Apache-2.0
// Courier: carries one-sided writes to ranks whose memory this process cannot reach, as messages over
// a communicator of its own. A thread on each rank sends, receives into the windows and acknowledges,
// whatever the rank's other threads do.
//
//   offset  bytes  field of a message's head (integers in the byte order of the machine)
//        0      4  "WPUT"
//        4      4  kind: 1 put, 2 acknowledgement, 3 the sender sends no more
//        8      8  ticket: the origin's number of the put
//       16      8  number of the window
//       24      8  offset in it, bytes
//       32      8  bytes, which follow as a message of their own unless 0
//       40      4  signal index
//       44      4  context
//       48      4  of an acknowledgement: 1 the window took it, 2 it has no such window or range
//       52     12  zero
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "weir/weir.h"

namespace weir::nccl {

// A write that is handed over.
struct Parcel {
  int peer = 0;
  const void* data = nullptr;  // the caller's, until the parcel is done
  uint64_t bytes = 0;
  uint64_t window = 0;
  uint64_t offset = 0;
  uint32_t signal = 0;
  uint32_t context = 0;

  enum State { kUnderWay, kDone, kRefused, kLeft };  // kLeft: the peer takes nothing any more
  std::atomic<int> state{kUnderWay};
};

class Courier {
 public:
  // What arrives. Called by the courier's thread.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    // Where to put it; nullptr: there is no such window or range. The window stays until `arrived`.
    virtual unsigned char* place(uint64_t window, uint64_t offset, uint64_t bytes) = 0;
    virtual void arrived(uint64_t window) = 0;
    // False: there is no such signal.
    virtual bool signal(int origin, uint32_t context, uint32_t signal) = 0;
  };

  // Takes the communicator over; `receiver` outlives the courier.
  Courier(weir_comm_t comm, int rank, int rank_count, Receiver* receiver);
  // Takes leave of the peers: each answers in kind, so that nothing is under way when the
  // communicator goes. Peers that stand still are waited for no longer than ten seconds.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Parcels for one peer arrive in their order.
  void send(std::shared_ptr<Parcel> parcel);
  // Waits until `parcel` is no longer under way, the courier has failed, or the time has passed.
  void wait(const Parcel& parcel, int64_t timeout_ms);
  // Parcels for `peer` that are under way.
  bool idle(int peer) const { return under_way_[static_cast<size_t>(peer)].load() == 0; }

  // For a process that exits: takes leave as above, in a tenth of a second at most, and ends the
  // thread.
  void quit();
  // Ends what is under way, here and now.
  void abort();
  // After abort: until the thread no longer touches what parcels point to.
  void wait_until_failed();
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string failure() const;

 private:
  struct Head {
    char magic[4];
    uint32_t kind;
    uint64_t ticket;
    uint64_t window;
    uint64_t offset;
    uint64_t bytes;
    uint32_t signal;
    uint32_t context;
    uint32_t result;
    uint32_t zero[3];
  };
  static_assert(sizeof(Head) == 64);

  // What a peer sends.
  struct Incoming {
    Head head{};
    weir_request_t request = nullptr;
    bool payload = false;  // the request is for the bytes after the head
    bool refused = false;
    bool left = false;                 // it sends no more
    bool said_bye = false;             // nothing more is sent to it
    std::vector<unsigned char> waste;  // of a put that is refused
  };
  struct Outgoing {
    Head head{};
    weir_request_t head_request = nullptr;
    weir_request_t payload_request = nullptr;
  };

  void serve();
  bool step();  // true when something moved; fails the courier where something is wrong
  bool take_parcels();
  bool step_incoming(int peer);
  bool step_outgoing();
  bool begin_receive(int peer);
  bool handle(int peer);
  bool deliver(int peer);
  void say_bye(int peer);
  void settle(uint64_t ticket, Parcel::State state);
  void post(int peer, const Head& head, const void* data);
  void say_goodbye(int64_t while_ms);
  void end_requests();
  void fail(const std::string& text);
  static Head make_head(uint32_t kind);

  weir_comm_t comm_;
  const int rank_;
  Receiver* const receiver_;

  // The thread's own.
  std::vector<Incoming> incoming_;
  std::deque<Outgoing> outgoing_;
  std::unordered_map<uint64_t, std::shared_ptr<Parcel>> awaiting_;
  uint64_t next_ticket_ = 1;

  std::vector<std::atomic<uint32_t>> under_way_;
  std::atomic<bool> failed_{false};
  mutable std::mutex lock_;  // guards what follows
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<std::shared_ptr<Parcel>> parcels_;
  std::string failure_;
  bool stop_ = false;
  int64_t goodbye_ms_ = 10'000;
  bool ended_ = false;  // the thread's requests

  std::thread thread_;
};

}  // namespace weir::nccl
