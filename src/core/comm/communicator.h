// SPDX-License-Identifier: Apache-2.0
// Communicator: a group of ranks with its transport, mapped segment, plans, order of operations and
// health.
//
// Order. Collectives of one communicator run one after the other, in the order of the calls.
// Point-to-point operations run beside them, in order per peer and direction. Different
// communicators are independent.
//
// Threads. Every public function may be called from any thread; one lock per communicator
// serializes them for the time of a poll. `abort`, `health` and `last_error` do not take it.
//
// Progress. The calling thread makes it, in blocking calls, in test and in wait; while it waits it
// also polls the other communicators of the process that have requests in flight, so that two ranks
// which wait in a different order do not block each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/process_generation.h"
#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/board.h"
#include "core/comm/bootstrap.h"
#include "core/comm/device_context.h"
#include "core/comm/device_memory.h"
#include "core/comm/device_side.h"
#include "core/comm/introduction.h"
#include "core/comm/recorder.h"
#include "core/comm/request.h"
#include "core/comm/spin_lock.h"
#include "core/comm/start_times.h"
#include "core/comm/wait.h"
#include "core/engine/context.h"
#include "core/engine/lane_run.h"
#include "core/engine/line_run.h"
#include "core/engine/mapped_run.h"
#include "core/engine/planner.h"
#include "weir/plugin.h"

namespace weir::comm {

struct CommOptions {
  int64_t timeout_ms = 0;  // 0: WEIR_TIMEOUT_MS
  bool deterministic = false;
  bool host_memory = false;  // see WEIR_COMM_HOST_MEMORY
  std::string name;          // "": made from the id
  std::string transport;     // instead of WEIR_TRANSPORT; "": that
};

class Communicator {
 public:
  // Collective; see weir_comm_create. Of `joining` it sets `began_ns` itself.
  static Result<std::unique_ptr<Communicator>> create(const Secret& secret, Rank rank,
                                                      Rank rank_count, const CommOptions& options,
                                                      const Place& place = {},
                                                      const JoinOptions& joining = {});
  // In a child made by fork it frees what is the child's own and tells nobody.
  ~Communicator();
  // The end of one that a process has made from which this one was forked. Where a thread of that
  // process was at it, it stays as it is until this one ends.
  static void leave_to_parent(std::unique_ptr<Communicator> comm);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return context_.rank; }
  Rank rank_count() const { return context_.rank_count; }
  // How long its making took.
  const StartTimes& start_times() const { return start_times_; }
  const std::string& name() const { return name_; }
  const MakingProcess& maker() const { return maker_; }

  // Collective; color < 0 gives nullptr.
  Result<std::unique_ptr<Communicator>> split(int color, int key, const CommOptions& options);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const Rank> excluded,
                                               const CommOptions& options);

  // Runs a collective to its end. The fast way for warm calls.
  Status run(const engine::Call& call);
  // Starts an operation; `request` must live until it is done. Fails without effect, or later in
  // the request.
  Status start(Request& request);
  // One poll; true when the request is done (its status then says how).
  bool test(Request& request);
  Status wait(Request& request);

  // Waits until the caller may go on, and releases a request of the pool: it is done, or goes by a stream
  // of the caller's and is on that.
  Status finish(Request* request);
  // Of an operation that goes by a stream of the caller's: waits until it is on that, or has failed, as the
  // request then tells. Any other one: nothing.
  void settle(Request& request);

  // Makes a request whose buffers lie on a device one of that kind. Fails where they may not.
  Status route(Request& request);
  // The device on which the buffers that are not NULL lie, -1: the host reads them. Both is an error.
  Result<int> device_of(std::span<const void* const> buffers) const;
  // For route, and for who knows already.
  void lies_on_device(Request& request, int device);
  Status set_stream(bool on_stream, void* stream);
  // Whether the transport takes messages with `peer` on memory of `device`. Asks it.
  bool takes_device_messages(Rank peer, int device);
  // The device in whose memory `buffer` lies, if messages with `peer` may lie there, else -1.
  int passes_on_device(Rank peer, const void* buffer);

  // Requests of the pool, for the nonblocking calls.
  Request* acquire_request();
  void release_request(Request* request);
  // How a request ended whose communicator has been destroyed (its `comm` is null); frees it.
  static Status end_of_left(Request* request);

  void abort();
  // Ranks whose process has ended, that are gone, or that an operation waited for in vain, here or
  // on a peer; ascending.
  std::vector<Rank> lost_ranks();
  Status health() const;           // ok, or the error that this rank has met
  Status async_error();            // the same, or what a peer has reported; waits for nobody
  std::string last_error() const;  // text of the latest error of this communicator
  void note_error(const Status& status);
  // Where `other`, a communicator of the same ranks that does a part of this one's work, has failed, this one has
  // from now on, too.
  void fail_with(Communicator& other);
  void set_timeout(int64_t timeout_ms) { timeout_ms_.store(timeout_ms); }

  // One-sided operations, which others carry (src/nccl), in this communicator's record. The number is 0 where nothing
  // is recorded. `units`: bytes, or signals of a wait. `waits` is to be called again and again while it waits.
  uint64_t one_sided_begun(RecordKind kind, Rank peer, uint64_t units);
  void one_sided_waits(uint64_t number, RecordKind kind, uint64_t units, uint64_t since_ns,
                       std::span<const Rank> awaited);
  void one_sided_done(uint64_t number);

  // Symmetric memory.
  Result<void*> mem_alloc(uint64_t bytes);
  Status mem_free(void* memory);
  // Memory of the caller's own that every rank reaches: by rank, its address in this process and its
  // length. Called at the same place among the collectives on all ranks, each of which has found that
  // it reaches all. An operation goes by it when the buffers of all ranks lie in memory of one call.
  // Gives the number to withdraw it by; 0: no more can be had.
  uint64_t add_reachable(std::vector<unsigned char*> addresses, std::vector<uint64_t> bytes);
  // Local: from then on the ranks copy. No operation may be in flight on the memory.
  void withdraw_reachable(uint64_t number);

  // Pre-multiplied sums: numbers from kFirstScale.
  static constexpr int kFirstScale = 16;
  static constexpr size_t kScalesMax = 4096;
  struct Scale {
    bool used = false;
    DataType type = DataType::kFloat32;
    unsigned char value[8] = {};
  };
  Result<int> create_scale(DataType type, const void* scalar);
  Status destroy_scale(int op);
  Result<Scale> scale(int op);

  // Makes what progress can be made without waiting. False when another thread is at it.
  bool try_poll();
  // Shows the peers that this rank lives, if they are to be told by now: for a thread that makes
  // progress while nobody waits.
  void attend();
  bool has_requests() const { return in_flight_.load(std::memory_order_relaxed) != 0; }

 private:
  struct Window {
    weir_segment_t segment{};  // base nullptr: freed
    bool shared = false;       // every rank maps it; else memory of this rank only
  };

  // The caller's own memory, by rank.
  struct Reachable {
    uint64_t number = 0;
    std::vector<unsigned char*> addresses;
    std::vector<uint64_t> bytes;
  };

  Communicator() = default;

  // ---- Collectives on device memory: device.cc ----
  bool may_have_device_memory() const { return !host_memory_ && driver_is_known(); }
  Result<int> device_of(const engine::Call& call) const;
  Status run_on_device(const engine::Call& call, int device);
  // With the lock held:
  Status take_on_device(Request& request);
  void open_device(int device);
  Status find_device_transport(int device);
  void begin_exchange();
  void exchange_done();
  void refuse_device(const Status& reason);
  bool poll_device();  // true when something moved
  bool poll_joining();
  bool serve_device();
  void device_failed(Request& request, weir_result_t result);
  void fail_device(const Status& status);
  bool end_device();  // true when no operation is left
  std::string way_of_device() const;
  void close_device();
  void watch_device();  // operations that nobody waits for
  void take_out(Request* before, Request& request);
  // The transport has it: NCCL does not tell whom it waits for.
  bool is_with_device(const Request& request) const {
    return request.kind == RequestKind::kDevice && device_ != nullptr &&
           device_->state == DeviceSide::State::kReady;
  }
  bool device_waits() const { return device_ != nullptr && device_->first != nullptr; }
  bool is_meeting(const Request& request) const {
    return device_ != nullptr && &request == &device_->meeting;
  }
  void release_locked(Request* request);

  // ---- Messages on device memory: device_messages.cc ----
  Status route_message(Request& request, int device);
  // With the lock held: posts of the messages that wait those whose turn has come. True when it did.
  bool post_waiting();
  bool is_waiting(const Request& request) const;
  void drop_mark(Request& request);

  // The end of this: requests that were not waited for tell later how they ended.
  void leave_requests(const Status& unfinished);
  void open_segment(const weir_segment_t& segment);
  Status join(const Secret& secret, Rank rank, Rank rank_count, const CommOptions& options,
              const Place& place, JoinOptions joining);
  // Those who take part in a shrink without `out` are all alive, as far as this communicator knows.
  Status check_survivors(const std::set<Rank>& out);
  // WEIR_OK, or what the bootstrap has heard of another rank meanwhile; its text is the transport's
  // error.
  weir_result_t look_while_connecting();
  // Opens the transport and exchanges introductions.
  Status introduce(Bootstrap& bootstrap, const weir_transport_config_t& config, Introduction self,
                   uint64_t deadline_ns, std::vector<Introduction>* all);
  // Where the ranks of a communicator that is made of this one find `rank`.
  Place place_of(Rank rank) const { return places_.empty() ? Place() : places_[rank]; }
  Status transport_failed(const char* what, weir_result_t result) const;
  // With the lock held:
  Status start_locked(Request& request);
  void enqueue(Request& request);
  void post(Request& request);              // a message to the transport
  bool begin_collective(Request& request);  // true when its run has started, or it has failed
  bool agree_on_windows(Request& request, bool* windows);
  bool poll_locked();  // true when something moved
  // True when it is complete, or has failed and is left to `fail`.
  bool poll_message(Request& request, Status* failure);
  void complete(Request& request, const Status& status);
  void fail_all(const Status& status);
  // The communicator is broken from now on; `blamed`: the ranks that were waited for in vain.
  void fail(Status status, const std::vector<Rank>& blamed = {});
  void close_window(const Window& window);
  bool has_windows() const { return !windows_.empty() || reachable_count_ > 0; }
  // Window number + 1 and offset of a buffer in one word; 0 when it lies in none.
  uint64_t window_word(const void* buffer, uint64_t bytes) const;
  // `first`: the word of rank 0.
  unsigned char* at_peer(uint64_t window_word, uint64_t first, Rank peer, uint64_t bytes) const;

  // Looks at what is too slow to look at in each poll. Fails the communicator where something is
  // wrong.
  void check_slowly(Request& request);
  // True when a rank that the request needs, or may need, has died or gone: the communicator has failed, or
  // will when that stays so. `waited_ns`: since the last look; `late`: the deadline has passed.
  bool look_for_lost(Request& request, uint64_t waited_ns, bool late);
  // Notes in `ended_` which peers' processes have ended, and reads what peers tell.
  void look_at_peers(uint64_t now);
  // The failure that a peer tells of; ok when it tells of none. `blamed`: whom it blames.
  Status failure_of(Rank peer, std::vector<Rank>* blamed) const;
  // Takes over the failure of a peer, if one tells of any.
  bool adopt_failure();
  bool is_gone(Rank peer) const;  // it has destroyed the communicator
  bool has_finished(Rank peer, uint64_t sequence) const;
  bool called_otherwise(Rank peer, uint64_t sequence, uint32_t fingerprint) const;
  // Shows the board's peers how this rank stands; `waits`: and whom its operations wait for.
  void show_standing(bool waits);
  void tell_failure();  // once
  // After the transport has failed an operation: why it did, as far as peers tell within a bounded
  // time.
  Status why_failed(Status status, const Request& request, std::vector<Rank>* blamed);
  // Tells the peers that share memory that this rank lives, and whom its operations wait for.
  void beat(uint64_t now);
  void end_beats();  // it waits for nobody any more
  // What a peer was last heard to wait for.
  void collect_awaited_by(Rank peer, std::vector<Rank>* ranks) const;
  // How often a rank whose operation waits shows that it lives; 0 where it does not.
  uint64_t beat_interval_ns() const;
  // At the deadline: whom this rank waits for in the end. False: it is too early to say.
  bool find_culprits(const Request& request, uint64_t now, std::vector<Rank>* culprits) const;
  Status mismatch_report(const Request& request);
  Status timeout_report(const Request& request, const std::vector<Rank>& culprits) const;
  std::string silence_of(const std::vector<Rank>& ranks) const;
  int64_t timeout_ms_of(const Request& request) const;
  // How long a dead rank is none of this one's concern while somebody else may still need it.
  uint64_t chain_patience_ns() const;
  void note_time(uint64_t began_ns, uint64_t now, uint64_t timeout_ns);
  // How long this rank has waited without a word of `peer`, not counting when it did not run.
  uint64_t silent_ns(Rank peer, uint64_t now) const;
  // Nothing that this rank shows has come to the peer's host for so long.
  bool is_unreached(Rank peer, uint64_t now, uint64_t while_ns) const;
  // "rank 3 died and rank 0 destroyed the communicator"
  std::string describe_lost(const std::vector<Rank>& lost) const;
  Status lost_report(const Request& request, const std::vector<Rank>& lost) const;
  std::vector<Rank> awaited(const Request& request) const;
  void collect_awaited(const Request& request, std::vector<Rank>* ranks) const;  // the same
  // Whom all operations under way need: a peer must not take a rank for free of somebody because
  // the operation that is waited for first does not need it. Allocates nothing once `ranks` has
  // room for every rank twice.
  void collect_awaited_by_all(std::vector<Rank>* ranks) const;
  std::string describe(const Request& request) const;
  SleepPlace sleep_place(const Request& request);
  void open_recorder(uint64_t comm_id, const std::vector<Introduction>& all,
                     const ClockReading& earlier);
  // As the transport tells it at present; "": it does not.
  std::string way_to(Rank peer) const;
  void record_ways(uint64_t now_ns);
  void record_message(Request& request);
  // Tells the recorder that somebody waits, and once the wait is long for whom.
  void record_wait(Request& request, uint64_t now_ns);

  const MakingProcess maker_;
  std::string name_;
  StartTimes start_times_;
  Secret secret_;
  std::vector<Place> places_;  // by rank; empty: all ranks share a host
  WaitPolicy wait_policy_;
  weir_host_t host_{};
  Bootstrap* bootstrap_ = nullptr;  // while the transport connects the ranks
  mutable std::mutex error_lock_;
  std::string error_text_;  // of transport or API, guarded by error_lock_
  std::string transport_error_;
  Status failure_;  // guarded by error_lock_
  std::atomic<uint8_t> failed_code_{0};
  std::atomic<bool> aborted_{false};
  std::atomic<int64_t> timeout_ms_{0};

  SpinLock lock_;
  engine::Context context_;
  Recorder recorder_;
  std::vector<Rank>
      awaited_ranks_;  // of the latest long wait; kept, so that waiting allocates nothing
  std::unique_ptr<engine::Planner> planner_;
  engine::MappedRun mapped_run_;
  engine::LineRun line_run_;
  engine::LaneRun lane_run_;
  std::vector<unsigned char*> peer_inputs_, peer_outputs_;  // of the active run over windows
  const engine::Plan* active_plan_ = nullptr;
  engine::Run* active_run_ = nullptr;  // of the head of the queue
  Request* first_ = nullptr;  // collectives in the order of the calls, linked by Request::next
  Request* last_ = nullptr;
  std::vector<Request*> messages_;  // posted, not done
  // Started, not posted, in the order of the calls: their streams have not come to them, or they come
  // behind one of which that is so.
  std::vector<Request*> waiting_;
  std::vector<std::unique_ptr<Request>> pool_;
  std::vector<Request*> free_requests_;
  std::atomic<uint32_t> in_flight_{0};
  std::vector<Window> windows_;
  std::vector<Reachable> reachable_;
  uint64_t reachable_count_ = 0;  // that were ever added: the same on all ranks
  std::vector<Scale> scales_;
  std::unique_ptr<DeviceSide> device_;  // once there was a collective on device memory
  std::atomic<bool> has_device_{false};
  std::unique_ptr<DeviceContext> message_device_;  // once there was a message on device memory
  bool host_memory_ = false;
  bool deterministic_ = false;
  bool leaves_host_ = false;  // the ranks are on several hosts
  bool on_stream_ = false;    // of weir_comm_set_stream
  void* stream_ = nullptr;
  std::unique_ptr<unsigned char, void (*)(void*)> private_segment_{nullptr, std::free};
  uint64_t split_count_ = 0;
  std::map<std::string, uint64_t> shrink_counts_;  // by the list of who was left out
  uint64_t window_count_ = 0;
  Board board_;  // where no memory is shared
  // Where it is: what every peer last showed there, and when it was seen to change.
  struct Beat {
    uint32_t count = 0;
    uint64_t heard_ns = 0;
  };
  std::vector<Beat> beats_;
  uint64_t beat_ns_ = 0;        // when this rank showed itself there last; 0: no operation waits
  bool told_ = false;           // the peers of the board have been shown the failure
  std::vector<Rank> blamed_;    // for it
  uint64_t wait_began_ns_ = 0;  // of the request that was checked last
  uint64_t checked_ns_ = 0;
  uint64_t stalled_ns_ = 0;  // of that wait: this thread did not run, so silence means nothing
  uint64_t last_look_ns_ = 0;
  uint64_t ways_recorded_ns_ = 0;
  std::vector<Rank> ended_;    // processes, as of the last look
  uint32_t lost_looks_ = 0;    // a peer is only lost once a poll after the news of it moved nothing
  uint64_t lost_wait_ns_ = 0;  // since then, while only others may need it
};

}  // namespace weir::comm
