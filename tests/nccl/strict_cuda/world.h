// SPDX-License-Identifier: Apache-2.0
// What the parts of the strict libcuda.so.1 share: what streams hold and the thread that carries it
// out, memory of the device, captures. One lock guards all of it; work of streams is carried out
// with the lock held.
//
// As in the driver, a context has a lock that every call takes which changes what is on its device,
// and a hardware queue has room for so many calls. A call that finds no room waits until the queue
// has gone on, and does so with the context's lock: another thread's call waits for it.
//
// The streams of a device share hardware queues: as many as CUDA_DEVICE_MAX_CONNECTIONS says, 1 to
// 32; 8 without it, as in CUDA. A stream belongs to one of them by the order of creation, and what
// stands first in a queue holds up all behind it, whatever their streams; but a kernel leaves the
// queue when it begins, so that only what its own stream has behind it waits there for its end.
// Streams of each priority have queues of their own; with STRICT_CUDA_PRIORITIES=share they share
// those of the device, whatever their priorities: it is not known what a driver does. A priority
// has no other effect.
//
// Freeing memory, ending a registration or a mapping, and loading a module wait until the device
// has nothing left to do, with the context's lock.
//
// With STRICT_CUDA_QUEUES=endless each stream has a queue of its own and these calls do not wait,
// which is true of no driver.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl/strict_cuda/strict_cuda.h"

namespace strict_cuda {

using namespace weir::cuda;  // NOLINT: this is that library

// Returns true when it is done; false to be asked again.
using Work = std::function<bool()>;

struct Node {
  // Makes the work of one launch.
  std::function<Work()> make;
  std::vector<size_t> after;
};

struct Object {
  HostFunction destroy = nullptr;
  void* argument = nullptr;
  int references = 0;
};

struct Recorded {
  uint64_t id = 0;
  std::vector<Node> nodes;
  std::vector<Object*> objects;
  bool spoiled = false;
  int mode = 0;
  std::thread::id owner;
  std::set<void*> streams;
};

struct StreamState;

// The streams of what it holds, in the order in which it was submitted.
using HardwareQueue = std::deque<StreamState*>;

// Streams are given them in turn.
struct HardwareQueues {
  std::vector<HardwareQueue> all;
  size_t streams_made = 0;
};

struct StreamState {
  Context context = nullptr;
  HardwareQueue* shared = nullptr;  // nullptr: the stream has one of its own
  size_t queue_number = 0;          // of the shared one
  int priority = 0;
  std::deque<Work> queue;
  std::deque<const char*> names;  // of the calls that enqueued them
  uint64_t enqueued = 0;
  uint64_t done = 0;
  bool runs_kernel = false;  // which has left the hardware queue
  bool destroyed = false;
  Recorded* capture = nullptr;
  bool origin = false;
  std::vector<size_t> last;  // nodes on which the next one depends
};

struct EventState {
  StreamState* stream = nullptr;
  uint64_t point = 0;
  Recorded* capture = nullptr;
  std::vector<size_t> nodes;
  std::shared_ptr<bool> launched;  // the latest record is one of a graph's: whether it is done
};

// Memory without an address. Owns its file.
struct Physical {
  Physical(size_t the_bytes, int the_file, Context the_context, int types)
      : bytes(the_bytes), file(the_file), context(the_context), handle_types(types) {}
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const size_t bytes;
  const int file;
  const Context context;
  const int handle_types;
};

struct Memory {
  size_t bytes = 0;
  char* real = nullptr;  // where this library reaches it
  Context context = nullptr;
  int file = -1;           // of memory that this process has allocated, but by mapping
  uint64_t number = 0;     // of the allocation, in its process
  bool is_opened = false;  // by CUDA IPC
  // Of memory made by mapping, and the contexts to which it has been given.
  std::shared_ptr<const Physical> physical;
  std::set<Context> given;
};

// Addresses, and where this library reaches what is mapped there.
struct Reserved {
  size_t bytes = 0;
  char* real = nullptr;
};

// Of NVIDIA's driver, about.
inline constexpr size_t kQueueMax = 1024;

inline constexpr int kContextCount = 16;

// The lower, the more urgent.
inline constexpr int kPriorityLeast = 0;
inline constexpr int kPriorityGreatest = -5;

struct World {
  std::mutex lock;
  std::condition_variable work;
  std::condition_variable moved;
  std::set<StreamState*> streams;
  std::vector<std::unique_ptr<StreamState>> ended;  // events may still name them
  std::set<EventState*> events;
  std::map<uintptr_t, Memory> device;
  std::map<uintptr_t, size_t> pinned;
  std::map<uintptr_t, size_t> registered;
  std::map<AllocationHandle, std::shared_ptr<const Physical>> physical;
  std::map<uintptr_t, Reserved> reserved;
  AllocationHandle next_handle = 1;
  uint64_t next_allocation = 1;
  std::set<Recorded*> captures;
  std::deque<Object*> doomed;
  std::map<std::string, int> faults;
  std::set<std::pair<Context, Context>>
      access;  // the first one's kernels, to the second one's memory
  int objects = 0;
  std::map<Context, Result> lost;  // contexts, with what calls in them return
  int copy_ms = 0;
  int host_copies = 0;
  std::map<Context, int> device_copies;  // by copies of CUDA's, within and between devices
  int kernels = 0;
  std::map<Context, std::vector<int>> copied_from;  // by the latest kernel that copies: devices
  uint64_t next_capture = 1;
  size_t queue_max = kQueueMax;
  StreamState legacy;
  size_t connections = 8;  // hardware queues of a device; 0: one for each stream
  bool priorities_share = false;
  std::map<int, HardwareQueues> hardware[kContextCount];  // by priority
};

// Threads use it until the process ends: never destroyed.
World& world();

extern int contexts[kContextCount];  // only their addresses count
extern thread_local Context t_context;
extern thread_local int t_mode;

// What a call takes that changes what is on its context's device: the context's lock, then the
// world's.
class Submission {
 public:
  explicit Submission(World& it);
  // Until one more call fits.
  void wait_for_room(const StreamState& stream);
  // Until the context's streams have nothing left.
  void wait_for_device();

 private:
  World& world_;
  std::unique_lock<std::mutex> context_;
  std::unique_lock<std::mutex> lock_;
};

// All below with the lock held, but `issue`.

// Whether this call is the one that is to fail.
bool fault(World& it, const char* function);
// The error of a context that is lost; kSuccess: it is not.
Result error_of(const World& it, Context context);

// Whether streams share hardware queues, and calls wait for the device.
bool is_like_a_driver(const World& it);
size_t index_of(Context context);
// Gives it the next of its device's and priority's hardware queues.
void join_hardware_queue(World& it, StreamState* stream);
StreamState* find_stream(World& it, Stream handle);
void push(World& it, StreamState* stream, const char* function, Work work);

// Enqueues, or records. Takes the lock.
Result issue(const char* function, Stream handle, std::function<Work()> make);

// A call that no capture allows, but in a relaxed thread.
Result forbidden(World& it, const char* function);

const Memory* find_device(World& it, uintptr_t address, uintptr_t* base);
// Whether kernels of the context reach it.
bool may_touch(const World& it, Context context, const Memory& memory);

// Where this library reaches the bytes; nullptr when they leave an allocation of the device, or
// allocations that are mapped side by side, or no device has access to them.
char* reach(World& it, DevicePointer pointer, size_t bytes);

}  // namespace strict_cuda
