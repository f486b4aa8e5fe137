// SPDX-License-Identifier: Apache-2.0
// Comm: the object behind a communicator's handle, and the table of the handles that are alive.
//
// A handle is looked up and never dereferenced, so that a destroyed or invalid handle gives an
// error and not a crash. A caller that works with a communicator holds a reference: abort and
// destroy take the handle out of the table at once, and the object is freed when the last call that
// uses it has returned.
//
// Thread-safe. Nothing here waits for a peer.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/process_generation.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/config.h"
#include "nccl/comm/device_state.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {
class Comm;
}  // namespace weir::nccl

// The first word distinguishes a handle of Weir's from one of NCCL's own, which begins with another
// word, and says whether this process made it or one that it was forked from.
struct ncclComm {
  uint64_t mark;
  weir::nccl::Comm* comm;  // of the table that has the handle
};

namespace weir::nccl {
class DerivedIds;
class OneSided;
struct SharedWindow;
}  // namespace weir::nccl

struct ncclWindow_vidmem {
  void* buffer;
  size_t bytes;
  std::shared_ptr<weir::nccl::SharedWindow> shared;
};

namespace weir::nccl {

class Comm;

// The communicator's interface to the object that runs its operations in stream order
// (stream/proxy.h).
class StreamWork {
 public:
  virtual ~StreamWork() = default;
  // Returns when all that was enqueued has been run, or the communicator is broken.
  virtual void wait_until_idle(Comm& comm) = 0;
  virtual bool idle() = 0;
  // A call was refused with `outcome`. Breaks the communicator where the program has reset the
  // device of its streams, so that no later call can succeed.
  virtual void check(Comm& comm, const Outcome& outcome) = 0;
};

// A factor of ncclRedOpCreatePreMulSum, as an operation holds it.
struct Factor {
  weir_datatype_t type = WEIR_FLOAT32;
  unsigned char value[8] = {};
  const void* device_scalar = nullptr;  // not nullptr: read when the operation runs
};

class Comm {
 public:
  // `rank_count` 0: known once it is made (attach).
  Comm(Config config, int rank, int rank_count, int device);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  const MakingProcess& maker() const { return maker_; }
  // The program's thread whose call made it.
  std::thread::id making_thread() const { return making_thread_; }
  // In a process forked from the maker: frees what belongs to this process and notifies no other
  // rank. The object stays, since threads of the maker may have been using it.
  void leave_to_parent();

  // Takes ownership of a communicator that has been made.
  void attach(weir_comm_t made);
  // nullptr until it is made.
  weir_comm_t weir() const { return weir_.load(std::memory_order_acquire); }

  // The real NCCL's communicator that does the work instead (forward/forwarding.h); nullptr: there
  // is none. It is aborted with this one, unless it was released to a new owner.
  ncclComm_t real() const { return real_.load(std::memory_order_acquire); }
  void forward_to(ncclComm_t real, int rank, int rank_count);
  ncclComm_t release_real() { return real_.exchange(nullptr); }
  // The ids for communicators that are made from this one; empty: Weir does the work.
  std::shared_ptr<DerivedIds> derived_ids() const;
  void set_derived_ids(std::shared_ptr<DerivedIds> ids);
  bool forwarded() const { return forwarded_.load(std::memory_order_acquire); }

  int rank() const { return rank_.load(std::memory_order_relaxed); }
  int rank_count() const { return rank_count_.load(std::memory_order_relaxed); }
  int device() const { return device_; }
  // False: device() is number 0 because the thread that made it had chosen none.
  bool chose_device() const { return chose_device_; }
  // For communicators that are made from this one: its device or, if it was made by a thread that
  // had chosen none, that of the calling thread.
  int device_for_child() const;
  const Config& config() const { return config_; }

  // Whether calls may be made: the communicator is made, healthy and not finalized, and has nothing
  // in the background.
  Outcome ready(const char* function) const;
  // The same for calls that are also allowed after finalize, revoke and suspend.
  Outcome made(const char* function) const;
  // The same for split and shrink, which are also allowed after revoke.
  Outcome shareable(const char* function) const;
  ncclResult_t async_error();
  // What it or a peer has met, also while a call is in progress; `during`: the function that is
  // concerned. Once it is made.
  ncclResult_t reported_error(const char* during);

  // Stops what is in flight; local and at once.
  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_acquire); }
  // Whether this process itself has stopped the communicator, so that a failure from now on says
  // nothing about a peer.
  bool stopped_here() const { return aborted() || revoked_.load(); }
  // As abort, but the communicator may still be split, shrunk and destroyed.
  Outcome revoke(const char* function);
  // The same; may be repeated (NCCL_SHRINK_ABORT).
  Outcome stop(const char* function);
  Outcome finalize(const char* function);
  Outcome suspend(const char* function);
  Outcome resume(const char* function);
  bool suspended() const { return suspended_.load(); }

  // Brackets a call in the background: between the two, async_error is ncclInProgress.
  bool in_background() const { return in_flight_.load() > 0; }
  void background_begins() { in_flight_.fetch_add(1); }
  void background_ends(const Outcome& outcome);

  // ---- In stream order ----
  // What runs the operations that are enqueued on streams; `make` makes it at the first call.
  std::shared_ptr<StreamWork> stream_work(std::shared_ptr<StreamWork> (*make)());
  // Returns when all that was enqueued has been run, or the communicator is broken. For calls that
  // use the communicator outside of its streams, which all ranks must see in the same order.
  void wait_for_streams();
  bool streams_idle() const;
  void check_streams(const Outcome& outcome);  // StreamWork::check
  // An operation failed in a stream: sets the communicator's error, unless it has one or was
  // stopped here.
  void stream_failed(const Outcome& outcome);
  // The same before this rank has begun the operation, which the peers may wait for: they are told.
  void give_up(const Outcome& outcome);
  // `function`, which is static, is run for a stream from now on; nullptr: nothing is.
  void runs(const char* function) { running_.store(function, std::memory_order_release); }
  // Success unless this process has aborted or revoked it.
  Outcome not_stopped(const char* function) const;
  // Whether nothing further may be run.
  bool broken() const { return stopped_here() || failure_.load() != ncclSuccess; }
  DeviceState& devices() { return devices_; }
  const DeviceState& devices() const { return devices_; }
  // The device on which `buffer` lies, if the transport itself takes messages with `peer` there;
  // else -1.
  int passes(int peer, const void* buffer) const;

  // The text of the latest error; once the communicator has failed, that of the first failure.
  void note_error(const std::string& text);
  std::string last_error() const;
  // The outcome for an error of Weir's C API that this thread has just met.
  Outcome outcome(const char* function, weir_result_t result) const;

  Outcome create_factor(const char* function, Factor factor, ncclRedOp_t* op);
  Outcome destroy_factor(const char* function, ncclRedOp_t op);
  std::optional<Factor> factor(ncclRedOp_t op) const;

  // Registered memory; handles are looked up and never dereferenced.
  void* add_registration();
  bool remove_registration(void* handle);
  ncclWindow_t add_window(ncclWindow_vidmem window);
  std::unique_ptr<ncclWindow_vidmem> remove_window(ncclWindow_t window);
  std::vector<std::shared_ptr<SharedWindow>> shared_windows() const;
  // A copy of what the handle refers to.
  std::optional<ncclWindow_vidmem> window(ncclWindow_t window) const;

  // Further communicators of the same ranks, by name; destroyed with this one.
  weir_comm_t sibling(const std::string& name) const;
  void add_sibling(const std::string& name, weir_comm_t made);

  // The id that this rank has made for the next communicator that grows from this one
  // (ncclCommGetUniqueId); valid for one communicator.
  void hold_grow_id(const weir_unique_id_t& id);
  std::optional<weir_unique_id_t> take_grow_id();

  // One-sided operations; empty until they are opened.
  std::shared_ptr<OneSided> one_sided() const;
  // `leave` is called before the communicator ends.
  void set_one_sided(std::shared_ptr<OneSided> state, void (*leave)(const Comm&));

 private:
  std::shared_ptr<StreamWork> known_stream_work() const;
  std::string title() const;  // "rank 1 of 4", with the name where there is one
  void note_cause(const std::string& text);
  // Sets `failure_`, unless an earlier call has.
  void fail(const Outcome& outcome);
  void end_the_rest();  // the siblings; with the lock held

  const MakingProcess maker_;
  const std::thread::id making_thread_ = std::this_thread::get_id();
  const Config config_;
  const int device_;
  const bool chose_device_;
  std::atomic<int> rank_;
  std::atomic<int> rank_count_;
  std::atomic<weir_comm_t> weir_{nullptr};
  std::atomic<ncclComm_t> real_{nullptr};
  std::atomic<int> in_flight_{0};
  std::atomic<int> failure_{ncclSuccess};      // of a call in the background
  std::atomic<const char*> running_{nullptr};  // the function whose operation is run for a stream
  std::atomic<bool> aborted_{false};
  std::atomic<bool> revoked_{false};
  std::atomic<bool> finalized_{false};
  std::atomic<bool> suspended_{false};
  std::atomic<bool> has_stream_work_{false};
  std::atomic<bool> has_siblings_{false};
  std::atomic<bool> forwarded_{false};

  DeviceState devices_;

  mutable std::mutex lock_;  // guards what follows, and abort against attach
  std::shared_ptr<StreamWork> stream_work_;
  std::shared_ptr<DerivedIds> derived_ids_;
  std::string error_text_;
  bool has_cause_ = false;  // error_text_ says why the communicator has failed, and stays
  std::unordered_map<int, Factor> factors_;
  std::unordered_set<void*> registrations_;
  std::unordered_map<ncclWindow_t, std::unique_ptr<ncclWindow_vidmem>> windows_;
  std::unordered_map<std::string, weir_comm_t> siblings_;
  std::optional<weir_unique_id_t> grow_id_;
  std::shared_ptr<OneSided> one_sided_;
  void (*leave_one_sided_)(const Comm&) = nullptr;
};

// As report() of outcome.h; keeps the text for the communicator too, where one is given.
ncclResult_t report(const Outcome& outcome, Comm* comm);

// ---- Handles ------------------------------------------------------------------------------------

ncclComm_t open_handle(std::shared_ptr<Comm> comm);
// Empty when there is no such handle (any more).
std::shared_ptr<Comm> find(ncclComm_t handle);

// A communicator from which another is made.
struct Parent {
  std::shared_ptr<Comm> comm;  // empty: there is none
  ncclComm_t real = nullptr;   // its handle in the real library; nullptr: Weir serves it
};
// The parent for a handle of Weir's, or for a handle of the real library for which Weir keeps a
// communicator.
Parent find_parent(ncclComm_t handle);
// From now on find_parent finds `comm` by the real handle that the caller was given.
void keep_forwarded(ncclComm_t real, std::shared_ptr<Comm> comm);
void forget_forwarded(ncclComm_t real);

// Takes the handle out of the table and returns its object.
std::shared_ptr<Comm> close_handle(ncclComm_t handle);
// The same for a handle of a process that this one was forked from, whose object stays
// (leave_to_parent). False: it is no such handle.
bool leave_handle_to_parent(ncclComm_t handle);
// The window, if a communicator that is alive has made it.
std::optional<ncclWindow_vidmem> find_window(ncclWindow_t window);
// The error for a handle that `find` does not know.
Outcome no_such_handle(const char* function, ncclComm_t handle);

// As guarded() of outcome.h, for a function that is given a communicator: `body` gets it, and an
// error's text is kept for the communicator too.
template <typename Body>
ncclResult_t with_comm(const char* function, ncclComm_t handle, Body body,
                       std::shared_ptr<Comm> (*look_up)(ncclComm_t) = find) noexcept {
  std::shared_ptr<Comm> comm;
  try {
    comm = look_up(handle);
    const Outcome outcome = comm == nullptr ? no_such_handle(function, handle) : body(*comm);
    return report(outcome, comm.get());
  } catch (...) {
    return report(outcome_of_exception(function, std::current_exception()), comm.get());
  }
}

}  // namespace weir::nccl
