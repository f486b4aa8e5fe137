// SPDX-License-Identifier: Apache-2.0
#include "offload/io/uring_disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "offload/io/arena.h"
#include "offload/io/uring_probe.h"

namespace weir::offload {
namespace {

constexpr uint32_t kFixedFilesMax = 64;
constexpr uint64_t kFixedBufferBytes = uint64_t{1} << 30;  // the kernel's limit of one
constexpr unsigned kSqThreadIdleMs = 50;

}  // namespace

struct UringDisk::State {
  struct Slot {
    Transfer transfer;
    TransferProgress progress;
  };

  explicit State(const DiskOptions& o) : options(o) {}

  const DiskOptions options;
  io_uring ring = {};
  bool running = false;       // the ring exists
  bool thread_bound = false;  // SINGLE_ISSUER
  bool enabled = false;
  pid_t owner = 0;  // thread that enabled it
  std::string flags_text;
  bool fixed_files = false;
  uint64_t fixed_bytes = 0;
  std::vector<bool> file_is_fixed;  // by FileId, below kFixedFilesMax
  std::vector<Slot> slots;
  std::vector<uint32_t> free_slots;
  std::vector<uint32_t> unsubmitted;  // slots whose request the kernel has not taken, in order
  std::vector<uint32_t> failed;       // slots that never reached the kernel
  Status broken;                      // after an error of the ring as a whole

  uint32_t in_flight() const { return static_cast<uint32_t>(slots.size() - free_slots.size()); }
};

UringDisk::UringDisk(const DiskOptions& options)
    : FileDisk(options.direct), state_(std::make_unique<State>(options)) {
  state_->slots.resize(options.depth);
  for (uint32_t i = options.depth; i > 0; --i) state_->free_slots.push_back(i - 1);
}

Result<std::unique_ptr<UringDisk>> UringDisk::create(const DiskOptions& options) {
  WEIR_RETURN_IF_ERROR(offload::check(options));
  std::unique_ptr<UringDisk> disk(new UringDisk(options));
  if (options.iopoll && options.iopoll_directories.empty())
    return invalid_argument("IOPOLL without a directory to try it in");
  for (size_t i = 0; options.iopoll && i < options.iopoll_directories.size(); ++i) {
    const std::string& directory = options.iopoll_directories[i];
    if (const Status works = probe_iopoll(directory); !works.ok())
      return Status(Code::kUnsupported,
                    fmt::format("IOPOLL in '{}': {}; it needs O_DIRECT and a device with queues to "
                                "poll (nvme.poll_queues): leave IOPOLL out",
                                directory, works.text()));
  }
  WEIR_RETURN_IF_ERROR(disk->start_ring());
  return disk;
}

UringDisk::~UringDisk() {
  State& s = *state_;
  if (s.in_flight() > 0) {
    WEIR_CHECK(!s.thread_bound || s.owner == gettid(),
               "a disk with transfers under way dies on the thread that submitted them");
    cancel();
    std::vector<Completion> done;
    uint64_t warned_ns = now_ns();
    // However long it takes: the memory is about to be reused.
    while (s.in_flight() > 0) {
      const Status reaped = reap(s.in_flight(), now_ns() + 1'000'000'000, &done);
      if (reaped.ok()) continue;
      if (reaped.code() != Code::kTimeout) usleep(1000);
      if (now_ns() < warned_ns) continue;
      log_warn(
          fmt::format("closing a disk waits for {} transfers: {}", s.in_flight(), reaped.text()));
      warned_ns = now_ns() + 10'000'000'000;
    }
  }
  stop_ring();
}

Status UringDisk::start_ring() {
  State& s = *state_;
  struct Attempt {
    unsigned flags;
    const char* text;
  };
  std::vector<Attempt> attempts;
  if (s.options.sqpoll)
    attempts = {{IORING_SETUP_SQPOLL, "SQPOLL"}};
  else
    attempts = {
        {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "SINGLE_ISSUER, DEFER_TASKRUN"},
        {IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"},
        {0, "no flags"}};
  int number = 0;
  for (const Attempt& attempt : attempts) {
    io_uring_params params = {};
    // Disabled until the first transfer: the thread that does it becomes the issuer.
    params.flags = attempt.flags | IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP |
                   (s.options.iopoll ? IORING_SETUP_IOPOLL : 0);
    params.sq_thread_idle = kSqThreadIdleMs;
    number = -io_uring_queue_init_params(s.options.depth, &s.ring, &params);
    if (number == 0 && (params.features & IORING_FEAT_EXT_ARG) == 0) {
      io_uring_queue_exit(&s.ring);
      number = ENOSYS;  // waiting with a deadline needs Linux 5.11
    }
    if (number == 0) {
      s.running = true;
      s.thread_bound = (attempt.flags & IORING_SETUP_SINGLE_ISSUER) != 0;
      s.enabled = false;
      s.owner = 0;
      s.flags_text = std::string(attempt.text) + (s.options.iopoll ? ", IOPOLL" : "");
      break;
    }
    if (number != EINVAL) break;
  }
  if (number != 0)
    return Status(
        Code::kUnsupported,
        system_error(s.options.sqpoll ? "io_uring_setup with SQPOLL" : "io_uring_setup", number)
                .text() +
            (number == ENOMEM ? "; raise the limit of locked memory (ulimit -l)"
                              : "; it needs Linux 5.11, kernel.io_uring_disabled=0 and a container "
                                "that allows it"));
  s.fixed_files = io_uring_register_files_sparse(&s.ring, kFixedFilesMax) == 0;
  if (!s.fixed_files) note("files are not registered: the kernel has no sparse table of them");
  s.file_is_fixed.assign(kFixedFilesMax, false);
  for (FileId id = 0; id < files().size(); ++id)
    if (files()[id].fd >= 0) WEIR_RETURN_IF_ERROR(register_file(id));
  register_memory();
  return Status();
}

void UringDisk::stop_ring() {
  State& s = *state_;
  if (!s.running) return;
  // The kernel tears a ring down in the background; the files and buffers registered with it are to
  // be free at once. (The kernel refuses this to threads other than the owner: then they are free a
  // little later.)
  if (s.fixed_files) io_uring_unregister_files(&s.ring);
  if (s.fixed_bytes > 0) io_uring_unregister_buffers(&s.ring);
  io_uring_queue_exit(&s.ring);
  s.running = false;
  s.fixed_bytes = 0;
}

// Removes the ring from this process alone: what is registered with it stays.
void UringDisk::leave_to_parent() {
  if (state_->running) io_uring_queue_exit(&state_->ring);
  state_->running = false;
  FileDisk::leave_to_parent();
}

Status UringDisk::bind_to_this_thread() {
  State& s = *state_;
  if (!s.broken.ok()) return s.broken;
  const pid_t me = gettid();
  if (s.enabled && (!s.thread_bound || s.owner == me)) return Status();
  if (s.enabled) {
    if (s.in_flight() > 0)
      return Status(Code::kInvalidUsage,
                    fmt::format("{} transfers that thread {} submitted are under way: only that "
                                "thread can reap them",
                                s.in_flight(), s.owner));
    stop_ring();
    const Status started = start_ring();
    if (!started.ok()) return s.broken = started;
  }
  // liburing 2.3 declares io_uring_enable_rings but its shared library does not export it.
  const long enabled =
      syscall(__NR_io_uring_register, s.ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  const int number = enabled < 0 ? errno : 0;
  if (number != 0) return s.broken = system_error("enable the ring", number);
  s.enabled = true;
  s.owner = me;
  return Status();
}

void UringDisk::register_memory() {
  State& s = *state_;
  s.fixed_bytes = 0;
  if (s.options.arena == nullptr) return;
  const Arena& arena = *s.options.arena;
  std::vector<iovec> pieces;
  for (uint64_t at = 0; at < arena.capacity_bytes(); at += kFixedBufferBytes)
    pieces.push_back({arena.base() + at, std::min(kFixedBufferBytes, arena.capacity_bytes() - at)});
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &limit);
  }
  const int number =
      -io_uring_register_buffers(&s.ring, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (number == 0) {
    s.fixed_bytes = arena.capacity_bytes();
    return;
  }
  std::string text = system_error("memory is not registered", number).text();
  if (number == ENOMEM || number == EPERM)
    text += fmt::format(
        "; it needs {} bytes of locked memory and RLIMIT_MEMLOCK is {}: raise it (ulimit -l, "
        "LimitMEMLOCK=, docker --ulimit memlock=-1) for less work per transfer",
        arena.capacity_bytes(), limit.rlim_max);
  note(text);
}

Status UringDisk::register_file(FileId id) {
  State& s = *state_;
  if (!s.fixed_files || id >= kFixedFilesMax) return Status();
  int fd = files()[id].fd;
  const int result = io_uring_register_files_update(&s.ring, id, &fd, 1);
  s.file_is_fixed[id] = result == 1;
  if (result < 0) note(system_error("a file is not registered", -result).text());
  return Status();
}

Status UringDisk::opened(FileId id) {
  State& s = *state_;
  if (s.options.iopoll && !files()[id].direct)
    return Status(Code::kUnsupported,
                  fmt::format("open '{}': it has no O_DIRECT, which IOPOLL needs; leave IOPOLL out",
                              files()[id].path));
  // The ring of another thread cannot register it now: the file is used by descriptor until the
  // ring moves.
  if (s.enabled && s.thread_bound && s.owner != gettid()) return Status();
  return register_file(id);
}

Status UringDisk::closing(FileId id) {
  State& s = *state_;
  if (id >= kFixedFilesMax || !s.file_is_fixed[id]) return Status();
  // A registered file stays open, and its space stays allocated, until the ring unregisters it.
  if (s.enabled && s.thread_bound && s.owner != gettid()) {
    WEIR_RETURN_IF_ERROR(bind_to_this_thread());
    if (!s.file_is_fixed[id]) return Status();
  }
  int none = -1;
  io_uring_register_files_update(&s.ring, id, &none, 1);
  s.file_is_fixed[id] = false;
  return Status();
}

int UringDisk::arena_index(const Transfer& transfer, uint64_t done, uint64_t bytes) const {
  const State& s = *state_;
  if (s.fixed_bytes == 0) return -1;
  const uint64_t base = reinterpret_cast<uintptr_t>(s.options.arena->base());
  const uint64_t first = reinterpret_cast<uintptr_t>(transfer.buffer) + done;
  if (first < base || first - base >= s.fixed_bytes || bytes > s.fixed_bytes - (first - base))
    return -1;
  const uint64_t index = (first - base) / kFixedBufferBytes;
  return index == (first - base + bytes - 1) / kFixedBufferBytes ? static_cast<int>(index) : -1;
}

// Puts the rest of the slot's transfer into the ring; false while there is no room.
bool UringDisk::queue(uint32_t slot) {
  State& s = *state_;
  io_uring_sqe* sqe = io_uring_get_sqe(&s.ring);
  if (sqe == nullptr) return false;
  const Transfer& t = s.slots[slot].transfer;
  const uint64_t done = s.slots[slot].progress.done_bytes;
  const auto bytes = static_cast<unsigned>(std::min(t.bytes - done, s.options.request_bytes_max));
  const bool fixed_file = t.file < kFixedFilesMax && s.file_is_fixed[t.file];
  const int fd = fixed_file ? static_cast<int>(t.file) : files()[t.file].fd;
  const int buffer = arena_index(t, done, bytes);
  unsigned char* at = t.buffer + done;
  const uint64_t offset = t.offset_bytes + done;
  if (buffer >= 0 && t.write)
    io_uring_prep_write_fixed(sqe, fd, at, bytes, offset, buffer);
  else if (buffer >= 0)
    io_uring_prep_read_fixed(sqe, fd, at, bytes, offset, buffer);
  else if (t.write)
    io_uring_prep_write(sqe, fd, at, bytes, offset);
  else
    io_uring_prep_read(sqe, fd, at, bytes, offset);
  if (fixed_file) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, slot);
  s.unsubmitted.push_back(slot);
  return true;
}

Status UringDisk::flush() {
  State& s = *state_;
  while (!s.unsubmitted.empty()) {
    const int taken = io_uring_submit(&s.ring);
    if (taken > 0) {
      const auto count = std::min<size_t>(static_cast<size_t>(taken), s.unsubmitted.size());
      s.unsubmitted.erase(s.unsubmitted.begin(),
                          s.unsubmitted.begin() + static_cast<std::ptrdiff_t>(count));
      continue;
    }
    // The kernel lacks a resource that completions free: the next reap tries again.
    if (taken == 0 || taken == -EAGAIN || taken == -EBUSY || taken == -EINTR) return Status();
    s.broken = system_error("io_uring_enter", -taken)
                   .with_context("the disk takes no more transfers, open it again");
    log_error(s.broken.text());
    fail_unsubmitted();
    return s.broken;
  }
  return Status();
}

// Their requests stay in the ring: nothing is submitted any more, so the kernel never sees them.
void UringDisk::fail_unsubmitted() {
  State& s = *state_;
  s.failed.insert(s.failed.end(), s.unsubmitted.begin(), s.unsubmitted.end());
  s.unsubmitted.clear();
}

uint32_t UringDisk::depth() const { return state_->options.depth; }
uint32_t UringDisk::in_flight() const { return state_->in_flight(); }

Result<uint32_t> UringDisk::submit(std::span<const Transfer> transfers) {
  State& s = *state_;
  WEIR_RETURN_IF_ERROR(FileDisk::check(transfers));
  WEIR_RETURN_IF_ERROR(bind_to_this_thread());
  uint32_t count = 0;
  for (const Transfer& transfer : transfers) {
    if (s.free_slots.empty()) break;
    const uint32_t slot = s.free_slots.back();
    s.slots[slot] = {transfer, TransferProgress()};
    if (!queue(slot)) break;
    s.free_slots.pop_back();
    ++file(transfer.file).transfers;
    ++count;
  }
  // If flush fails, the transfers taken complete with its error.
  if (count > 0) (void)flush();
  return count;
}

void UringDisk::complete(uint32_t slot, TransferOutcome outcome, std::vector<Completion>* done) {
  State& s = *state_;
  const State::Slot& finished = s.slots[slot];
  done->push_back(
      {finished.transfer.tag, status_of(finished.transfer, outcome, finished.progress)});
  --file(finished.transfer.file).transfers;
  s.free_slots.push_back(slot);
}

// Takes the kernel's completions and resubmits short transfers.
void UringDisk::collect(std::vector<Completion>* done) {
  State& s = *state_;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(&s.ring, &cqe) == 0 && cqe != nullptr) {
    const uint64_t data = io_uring_cqe_get_data64(cqe);
    const int result = cqe->res;
    io_uring_cqe_seen(&s.ring, cqe);
    WEIR_CHECK(data < s.slots.size(), "the kernel completes what it was given");
    const auto slot = static_cast<uint32_t>(data);
    State::Slot& running = s.slots[slot];
    const TransferOutcome outcome =
        running.progress.add(result, running.transfer, files()[running.transfer.file].fd);
    if (outcome != TransferOutcome::kMore)
      complete(slot, outcome, done);
    else if (!s.broken.ok() || !queue(slot))
      s.failed.push_back(slot);
  }
  for (const uint32_t slot : s.failed) {
    s.slots[slot].progress.error_number = EIO;
    complete(slot, TransferOutcome::kFailed, done);
  }
  s.failed.clear();
}

Status UringDisk::reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) {
  State& s = *state_;
  const size_t before = done->size();
  least = std::min(least, s.in_flight());
  if (s.in_flight() == 0) return Status();
  if (s.broken.ok()) WEIR_RETURN_IF_ERROR(bind_to_this_thread());
  // Deferred completions are delivered only when asked for.
  if (least == 0 && s.thread_bound) io_uring_get_events(&s.ring);
  while (true) {
    if (s.broken.ok()) (void)flush();
    collect(done);
    if (!s.unsubmitted.empty() && s.broken.ok()) (void)flush();
    const size_t count = done->size() - before;
    if (count >= least) return Status();
    const uint64_t now = now_ns();
    const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    const uint64_t wait_ns = std::min<uint64_t>(left, 3'600'000'000'000u);
    __kernel_timespec timeout = {};
    timeout.tv_sec = static_cast<int64_t>(wait_ns / 1'000'000'000u);
    timeout.tv_nsec = static_cast<long long>(wait_ns % 1'000'000'000u);
    io_uring_cqe* cqe = nullptr;
    const int waited =
        io_uring_wait_cqes(&s.ring, &cqe, static_cast<unsigned>(least - count), &timeout, nullptr);
    if (waited != 0 && waited != -ETIME && waited != -EINTR && waited != -EAGAIN &&
        waited != -EBUSY)
      return system_error("wait for transfers", -waited);
    if (left > 0) continue;
    collect(done);
    if (!s.unsubmitted.empty() && s.broken.ok()) (void)flush();
    if (done->size() - before >= least) return Status();
    return Status(Code::kTimeout,
                  fmt::format("{} of {} transfers completed before the deadline, {} are under way",
                              done->size() - before, least, s.in_flight()));
  }
}

void UringDisk::cancel() {
  State& s = *state_;
  if (s.in_flight() == 0 || !bind_to_this_thread().ok()) return;
  io_uring_sync_cancel_reg request = {};
  request.flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
  // Does not wait: what the device has begun completes by itself. Best effort before Linux 6.0.
  request.timeout = {0, 0};
  (void)io_uring_register_sync_cancel(&s.ring, &request);
}

std::string UringDisk::describe() const {
  const State& s = *state_;
  return fmt::format("io_uring, depth {}, {}, {} bytes registered, files {}{}", s.options.depth,
                     s.flags_text, s.fixed_bytes, s.fixed_files ? "registered" : "not registered",
                     notes());
}

}  // namespace weir::offload
