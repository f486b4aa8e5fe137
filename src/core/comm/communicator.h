// SPDX-License-Identifier: Apache-2.0
// Communicator: a group of ranks, and the entry for the API. It makes and ends the parts that do
// the work, and waits. Each part has a header of its own:
//
//   Windows          symmetric memory, and the callers' own that all ranks reach
//   Scales           pre-multiplied sums
//   DeviceRoute      which calls lie on memory of a device, and their stream
//   Requests         requests, from the call to their end, and their callbacks
//   Operations       operations under way: CollectiveQueue, Messages, DeviceSide, OneSidedService
//   Health           deadlines, lost peers, failures; PeerReports: what ranks tell each other of it
//   Records          what is written into the recorder
//   OneSided         windows for one-sided operations
//
// All parts share the CommState: rank and group, the transport, the lock.
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
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/base/process_generation.h"
#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/collective/scales.h"
#include "core/comm/collective/windows.h"
#include "core/comm/device/device_route.h"
#include "core/comm/health/health.h"
#include "core/comm/operations.h"
#include "core/comm/record/start_times.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/reports/times_of_ranks.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/introduction.h"
#include "core/comm/start/learned_choices.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/records.h"
#include "core/control/host_control.h"
#include "weir/plugin.h"

namespace weir::comm {

struct CommOptions {
  int64_t timeout_ms = 0;  // 0: WEIR_TIMEOUT_MS
  bool deterministic = false;
  bool host_memory = false;  // see WEIR_COMM_HOST_MEMORY
  Arithmetic arithmetic = Arithmetic::kIeee;
  std::string name;       // "": made from the id
  std::string transport;  // instead of WEIR_TRANSPORT; "": that
  bool recorded = true;   // where the settings say so
};

class DeviceWindow;
class OneSided;
class WatchedCommunicator;

class Communicator {
 public:
  // Collective; see weir_comm_create. Of `joining` it sets `began_ns` itself.
  static Result<std::unique_ptr<Communicator>> create(const Secret& secret, Rank rank,
                                                      Rank rank_count, const CommOptions& options,
                                                      const Place& place = {},
                                                      const JoinOptions& joining = {});
  // In a child made by fork it frees what is the child's own and tells no peer.
  ~Communicator();
  // Ends a communicator that was made by the process from which this one was forked. If a thread of
  // that process was using it during the fork, it is kept until this process ends.
  static void leave_to_parent(std::unique_ptr<Communicator> comm);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Rank rank() const { return state_.rank(); }
  Rank rank_count() const { return state_.rank_count(); }
  // How long making it took.
  const StartTimes& start_times() const { return start_times_; }
  const std::string& name() const { return state_.name; }
  const MakingProcess& maker() const { return state_.maker; }

  // Collective: makes a set of programs a candidate; see weir_comm_add_program. `mistake`: an error
  // in the arguments of this rank's call, which all ranks hear.
  Status add_program(const std::string& name, std::string_view text, bool preferred,
                     const Status& mistake = {});

  // Collective; color < 0 gives nullptr.
  Result<std::unique_ptr<Communicator>> split(int color, int key, const CommOptions& options);
  Result<std::unique_ptr<Communicator>> shrink(std::span<const Rank> excluded,
                                               const CommOptions& options);

  // ---- Operations.
  // Runs a collective to its end. The fast way for warm calls.
  Status run(const engine::Call& call);
  // Marks a request whose buffers lie on a device as one on device memory. Fails where they may not
  // lie there.
  Status route(Request& request);
  // Starts an operation; `request` must live until it is done. Fails without effect, or later in
  // the request. One of `group` goes on a stream in the `advance` after all of the group.
  Status start(Request& request, const CallGroup* group = nullptr);
  // One poll; true when the request is done (its status then says how).
  bool test(Request& request);
  Status wait(Request& request);
  // Waits until the caller may go on, and releases a request of the pool: the request is done, or
  // uses a stream of the caller's and is enqueued on it.
  Status finish(Request* request);
  // For an operation that uses a stream of the caller's: waits until it is enqueued on the stream
  // or has failed, as the request then says. For any other one: does nothing.
  void settle(Request& request);

  // Makes the progress that is possible now, such as that of a group that has been started.
  void advance();

  // The parts that callers use themselves; thread-safe as far as their headers say so.
  Requests& requests() { return requests_; }
  Windows& windows() { return windows_; }
  Scales& scales() { return scales_; }
  DeviceRoute& devices() { return devices_; }
  // Of calls that go directly between devices; without memory: they do not, or not yet.
  StreamParts stream_parts() {
    const std::lock_guard lock(state_.lock);
    return operations_.device_side().stream_parts();
  }
  Messages& messages() { return operations_.messages(); }
  Records& records() { return records_; }

  // One-sided operations; nullptr before the first window. Opening it is collective.
  Result<OneSided*> open_one_sided();
  OneSided* one_sided() { return one_sided_.get(); }
  // Makes progress of one-sided operations, for callers that poll a word themselves. True when
  // something moved.
  bool poll_windows();
  // See weir_mem_alloc and weir_mem_free.
  Result<void*> allocate_memory(uint64_t bytes);
  Status free_memory(void* memory);
  // See weir_register_symmetric; nullptr: operations copy as before. The window lives as long as
  // the communicator at most.
  Result<const DeviceWindow*> register_symmetric(void* memory, uint64_t bytes);
  void deregister_symmetric(const DeviceWindow* window);
  // See weir_arena_create and weir_arena_destroy.
  Result<std::shared_ptr<Arena>> create_arena(uint64_t bytes);
  Status destroy_arena(const Arena& arena);
  // Set if this communicator carries the one-sided operations of another one; else nullptr.
  OneSidedService* one_sided_service() { return operations_.one_sided_service(); }

  // With several ranks; else nullptr.
  control::Network* network() { return network_.get(); }
  bool deterministic() const { return state_.deterministic; }

  // ---- Health.
  void abort();
  // The same, but this rank and its peers are told that the communicator was revoked.
  void revoke();
  // Ranks whose process has ended, that have left, or that an operation waited for in vain, here or
  // on a peer; ascending.
  std::vector<Rank> lost_ranks();
  // See StreamOwner.
  std::vector<Rank> gone_ranks();
  void note_stuck(const void* call, const std::vector<Rank>& awaited);
  bool find_culprits(const std::vector<Rank>& awaited, const WaitTime& time, uint64_t timeout_ns,
                     std::vector<Rank>* culprits);
  std::string describe_lost(const std::vector<Rank>& ranks);
  std::string calls_elsewhere(const std::vector<Rank>& ranks);
  Status health() const { return state_.failure.status(); }  // ok, or the error that it has met
  Status async_error();  // the same, or an error that a peer has reported; does not wait
  std::string last_error() const { return state_.failure.text(); }  // text of the latest error
  void note_error(const Status& status) {
    state_.failure.note(status);
    if (Communicator* outer = outer_.load()) outer->note_error(status);
  }
  // This rank cannot go on, for a reason of the caller's: breaks the communicator, and tells the
  // peers the reason. Without effect on one that has failed already. `blamed`: ranks that were
  // waited for in vain.
  void give_up(const Status& reason, const std::vector<Rank>& blamed = {});
  // Of these ranks, those that have reported that they wait for this one.
  std::vector<Rank> waiting_for_this_rank(const std::vector<Rank>& ranks);
  void set_timeout(int64_t timeout_ms) { state_.timeout_ms.store(timeout_ms); }
  int64_t timeout_ms() const { return state_.timeout_ms.load(); }

  // ---- Progress, for threads that wait for other communicators.
  bool has_requests() const { return requests_.any(); }
  // Whether a thread that waits for it sleeps between its own polls.
  bool is_polled() const { return napping_.load(std::memory_order_relaxed) != 0; }
  // Makes the progress that is possible without waiting. False when another thread is doing so.
  bool try_poll();
  // Of a communicator without requests: lets its transport go on with what is left of operations
  // that are complete, as a small message that its network has not delivered; every 20 ms at most.
  void tend(uint64_t now_ns);
  // Checks operations that no thread may be waiting for, and shows the peers that this rank lives:
  // for the progress thread, while no other thread waits.
  void attend();

 private:
  Status meet_for_memory(engine::Purpose purpose, const char* function, uint64_t bytes);
  Status gather_to_register(const void* mine, void* all, size_t bytes);
  void tell_why_not(const std::string& reason);
  void fail_without_memory(const Status& status);
  Communicator();

  // ---- Making: communicator.cc
  Status join(const Secret& secret, Rank rank, Rank rank_count, const CommOptions& options,
              const Place& place, JoinOptions joining);
  // Of all ranks but `others`, in a call that they make together: one that has died or left ends it
  // at once.
  JoinOptions joining_in(const char* call, const std::set<Rank>& others = {});
  Status open_network(bool leaves_host);
  // WEIR_OK, or the error that the bootstrap has heard from another rank meanwhile; its text
  // becomes the transport's error.
  weir_result_t look_while_connecting();
  // Opens the transport and exchanges introductions.
  Status introduce(Bootstrap& bootstrap, const weir_transport_config_t& config, Introduction self,
                   uint64_t deadline_ns, std::vector<Introduction>* all);
  // Once there are ranks of other hosts: tells them where this one is found (`listens`) and what it
  // has found out in `self`, and takes what they tell.
  Status look_out(Bootstrap& bootstrap, bool listens, Introduction* self, uint64_t deadline_ns,
                  std::vector<Introduction>* all);
  void open_segment(const weir_segment_t& segment);
  // Where the ranks of a communicator that is made of this one find `rank`.
  Place place_of(Rank rank) const { return places_.empty() ? Place() : places_[rank]; }
  Status transport_failed(const char* what, weir_result_t result) const;
  // Why the transport has not connected: a rank's death, where one is heard of soon.
  Status connect_failed(weir_result_t result);
  void leave_in_child();
  void close_one_sided();

  // Where all ranks have a device: makes their memory reachable for operations on it.
  Status prepare_device(int device);

  // ---- Programs: communicator_programs.cc
  // With the lock held: whether the program may be added now.
  Status check_program(const algo::Imported& program);
  // Exchanges with the other ranks whether all add the program, which `mine` describes, and after
  // the same collective: that with the number `sequence`. `number`: of the call of add_program.
  Status agree_on_program(uint64_t number, uint64_t sequence, const Status& status,
                          const std::string& mine);
  // Why not all ranks can come for that; ok while they can.
  Status why_not_together(uint64_t number, uint64_t sequence, uint64_t patient_until_ns,
                          const StillPossible& alive);
  // The reason for which a rank has ended that call before all had come; ok while none has.
  Status ended_program(uint64_t number);

  // ---- Progress: progress.cc
  // Until the ranks have found out whether calls go from device to device, if they do so now.
  Status await_device_side();
  // Of an error in buffers; where the device was reset, that is the error, and this communicator
  // fails.
  Status explain_refusal(const Status& refused);
  // The device by which a collective goes; -1: it is one on memory of the host.
  Result<int> device_of_collective(const engine::Call& call);
  bool is_stream_message_possible(std::string* why_not);
  // Without the lock, after a poll: callbacks, and operations that a stream is given now.
  void act_on_poll();
  Status run_slowly(const engine::Call& call);
  // Continues a call that run_warm has begun and not finished. Called with the lock held; releases
  // it.
  Status go_on_slowly(const engine::Call& call, CollectiveQueue::Warm warm);
  // With the lock held:
  Status start_locked(Request& request);
  bool poll_locked();  // true when something moved
  void poll_owner();
  // Health::check, and tells the peers in the related communicator of a long wait.
  void check(Request& request);
  // Without any lock: this rank does not wait any more; the related communicator shows it.
  void end_wait_elsewhere();
  // The one that carries this one's one-sided operations, or whose operations this one carries;
  // nullptr: there is none.
  Communicator* related() const {
    Communicator* const inner = inner_.load();
    return inner != nullptr ? inner : outer_.load();
  }

  CommState state_;
  StartTimes start_times_;
  std::string costs_cached_in_;  // AgreedCosts::cached_in, if the table is judged in the end
  std::optional<LearnedPlace> learned_in_;  // on rank 0 of a communicator that learns
  CommOptions options_;                     // as it was made
  std::vector<Place> places_;               // by rank; empty: all ranks share a host
  Bootstrap* bootstrap_ = nullptr;          // while the transport connects the ranks
  bool is_connected_ = false;               // the transport has connected the ranks
  std::unique_ptr<unsigned char, void (*)(void*)> private_segment_{nullptr, std::free};
  // With several ranks only. These members outlive the transport's instance.
  std::unique_ptr<control::Network> network_;
  std::unique_ptr<control::HostControl> host_control_;

  PeerReports reports_;
  TimesOfRanks times_of_ranks_;
  Requests requests_;
  Windows windows_;
  Scales scales_;
  DeviceRoute devices_;
  Operations operations_;
  Records records_;
  Health health_;
  std::shared_ptr<WatchedCommunicator> watched_;
  std::unique_ptr<OneSided> one_sided_;       // set with the first window for them
  std::vector<Rank> awaited_;                 // of the latest check of a long wait
  std::atomic<bool> waits_elsewhere_{false};  // the related communicator shows a wait of this one
  std::atomic<uint32_t> napping_{0};          // threads in `wait` that sleep between polls
  std::atomic<uint64_t> tended_ns_{0};
  std::atomic<Communicator*> inner_{nullptr};  // carries this one's one-sided operations
  std::atomic<Communicator*> outer_{nullptr};  // the one whose operations this one carries
  uint64_t split_count_ = 0;
  std::mutex program_lock_;                        // held during add_program
  uint64_t program_count_ = 0;                     // calls of add_program
  std::map<uint64_t, Status> ended_programs_;      // by number, what other ranks have told
  std::map<std::string, uint64_t> shrink_counts_;  // by the list of excluded ranks
};

}  // namespace weir::comm
