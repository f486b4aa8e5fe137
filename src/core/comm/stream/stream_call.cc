// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/kernels/reduce_layout.h"

namespace weir::comm {

namespace {

constexpr cuda::MemoryPlace kScratch = cuda::MemoryPlace::kDevice;

bool is_reduction(const engine::Call& call) {
  return call.collective == Collective::kAllReduce || call.collective == Collective::kReduce ||
         call.collective == Collective::kReduceScatter;
}

// Also of an average and of a pre-multiplied sum.
kernels::ReduceFold fold_of(const engine::Call& call) {
  if (call.average || call.scaled) return kernels::ReduceFold::kSum;
  switch (call.fold) {
    case Fold::kProd:
      return kernels::ReduceFold::kProd;
    case Fold::kMax:
      return kernels::ReduceFold::kMax;
    case Fold::kMin:
      return kernels::ReduceFold::kMin;
    case Fold::kSum:
      break;
  }
  return kernels::ReduceFold::kSum;
}

// So much at least, so that it is worth the wait for the peers at the end.
constexpr uint64_t kWindowsBytesMin = StreamProgram::kOnePhaseMax + 1;

bool is_usable(const DeviceWindow::Place& place, uint64_t element_bytes) {
  return place.window != nullptr && place.offset % element_bytes == 0;
}

// The same on all ranks, as far as their buffers lie at the same places: it looks only at buffers
// that all ranks have.
CallInWindows find_windows(const engine::Call& call, StreamMemory& memory) {
  const Collective it = call.collective;
  const bool has_blocks = it == Collective::kReduceScatter || it == Collective::kAllToAll;
  const uint64_t size = element_bytes(call.type);
  const uint64_t bytes = call.count * size;
  const Rank n = memory.rank_count();
  if (it == Collective::kScatter || n == 1 || call.scaled || bytes < kWindowsBytesMin) return {};
  const bool reads_send = it != Collective::kBroadcast;
  const bool reads_recv = it == Collective::kBroadcast || it == Collective::kAllReduce;
  const uint64_t send_bytes = has_blocks ? n * bytes : bytes;
  const auto* const send = static_cast<const char*>(call.input);
  auto* const recv = static_cast<char*>(call.output);
  CallInWindows found;
  if (it == Collective::kAllGather && send == recv + memory.rank() * bytes) {
    found.send = memory.find_window(recv, n * bytes);
    found.stride = bytes;
  } else if (reads_send) {
    found.send = memory.find_window(send, send_bytes);
  }
  if (reads_recv) found.recv = memory.find_window(recv, bytes);
  if ((reads_send && !is_usable(found.send, size)) ||
      (reads_recv && !is_usable(found.recv, size)) ||
      (it == Collective::kAllToAll && send < recv + send_bytes && recv < send + send_bytes)) {
    return {};
  }
  return found;
}

uint64_t number_of(const DeviceWindow::Place& place) {
  return place.window != nullptr ? place.window->number() : 0;
}

// Ranks whose buffers lie elsewhere, or that go another way, do not use each other's data.
CallWords words_in(const engine::Call& call, uint64_t rooted_number, const CallInWindows& windows,
                   const StreamSchedule* schedule) {
  CallWords words = words_of(call);
  if (rooted_number != 0) words.fingerprint = engine::fingerprint(words.fingerprint, rooted_number);
  if (schedule != nullptr) words.fingerprint = engine::fingerprint(words.fingerprint, 1);
  if (!windows.is_so()) return words;
  uint64_t mixed = words.fingerprint;
  const uint64_t places[] = {number_of(windows.send), windows.send.offset, windows.stride,
                             number_of(windows.recv), windows.recv.offset};
  for (const uint64_t it : places) mixed = engine::fingerprint(mixed, it);
  words.fingerprint = static_cast<uint32_t>(mixed);
  return words;
}

StreamShape shape_of(const engine::Call& call, const CallWords& words, bool in_windows,
                     const StreamWays& ways) {
  StreamShape shape;
  shape.collective = call.collective;
  shape.root = call.root;
  shape.count = call.count;
  shape.element_bytes = static_cast<uint32_t>(element_bytes(call.type));
  shape.fingerprint = words.fingerprint;
  shape.in_windows = in_windows;
  shape.one_phase_max = ways.one_phase_max();
  return shape;
}

}  // namespace

std::string CallWay::text() const {
  return fmt::format("directly, {} {}{} {} round{}, {}", schedule != nullptr ? "by" : "in",
                     phases(), schedule != nullptr ? ", in" : " and", round_count,
                     round_count == 1 ? "" : "s",
                     in_windows ? "out of buffers in windows" : "through scratch");
}

bool is_rooted(const engine::Call& call) {
  return call.collective == Collective::kReduce || call.collective == Collective::kBroadcast ||
         call.collective == Collective::kGather || call.collective == Collective::kScatter;
}

CallWords words_of(const engine::Call& call) {
  CallWords words;
  words.what = engine::pack_what(call);
  words.count = call.count;
  words.fingerprint = engine::fingerprint(words.what, words.count);
  return words;
}

StreamCall::StreamCall(const char* function, const engine::Call& call,
                       std::shared_ptr<StreamMemory> memory,
                       std::shared_ptr<const StreamSchedule> schedule, CallInWindows windows,
                       cuda::Stream stream, const StreamWords& words, uint32_t number,
                       uint64_t rooted_number)
    : memory_(std::move(memory)),
      calls_(memory_->driver(), function, stream),
      number_(number),
      started_(address(&words.calls().ready)),
      ended_(address(&words.calls().done)),
      send_(static_cast<const char*>(call.input)),
      recv_(static_cast<char*>(call.output)),
      element_bytes_(static_cast<uint32_t>(element_bytes(call.type))),
      windows_(std::move(windows)),
      has_root_(is_rooted(call)),
      call_words_(words_in(call, rooted_number, windows_, schedule.get())),
      program_(shape_of(call, call_words_, windows_.is_so(), memory_->ways()), memory_->rank(),
               memory_->rank_count(), memory_->slot_bytes()),
      schedule_(std::move(schedule)) {
  if (schedule_ == nullptr) return;
  scheduled_.emplace(shape_of(call, call_words_, false, memory_->ways()), schedule_,
                     memory_->slot_bytes());
}

Status StreamCall::make(const char* function, const engine::Call& call, const void* factor,
                        const std::shared_ptr<StreamMemory>& memory, cuda::Stream stream,
                        const StreamWords& words, uint32_t number, uint64_t rooted_number,
                        std::shared_ptr<Staging>* pinned, std::unique_ptr<StreamCall>* made) {
  auto schedule = memory->ways().schedule_for(call);
  CallInWindows windows = schedule == nullptr ? find_windows(call, *memory) : CallInWindows();
  std::unique_ptr<StreamCall> it(new StreamCall(function, call, memory, std::move(schedule),
                                                std::move(windows), stream, words, number,
                                                rooted_number));
  Status status = it->prepare(call, factor);
  if (status.ok()) status = it->prepare_host_copies(pinned);
  if (status.ok()) *made = std::move(it);
  return status;
}

Status StreamCall::prepare_host_copies(std::shared_ptr<Staging>* pinned) {
  const cuda::Driver& driver = calls_.driver();
  const bool any_plain = send_place_ == cuda::MemoryPlace::kPlain ||
                         recv_place_ == cuda::MemoryPlace::kPlain ||
                         cuda::place_of(driver, factor_memory_) == cuda::MemoryPlace::kPlain;
  if (!any_plain && !(cuda::is_of_host(send_place_) && cuda::is_of_host(recv_place_))) return {};
  if (any_plain && *pinned == nullptr) {
    Status status =
        get_staging(calls_.driver(), calls_.function(), 1, memory_->slot_bytes(), pinned);
    if (!status.ok()) return status;
  }
  host_copies_ = std::make_shared<HostCopies>();
  host_copies_->pinned = *pinned;
  return {};
}

Status StreamCall::prepare(const engine::Call& call, const void* factor) {
  const cuda::Driver& driver = calls_.driver();
  if (program_.sends()) send_place_ = cuda::place_of(driver, send_);
  if (program_.receives()) recv_place_ = cuda::place_of(driver, recv_);
  const auto is_on_this_device = [&driver](cuda::MemoryPlace place, const void* memory) {
    return place == cuda::MemoryPlace::kDevice && cuda::is_on_current_device(driver, memory);
  };
  reads_send_ = program_.sends() && is_on_this_device(send_place_, send_);
  writes_recv_ = program_.receives() && reinterpret_cast<uintptr_t>(recv_) % element_bytes_ == 0 &&
                 (is_on_this_device(recv_place_, recv_) ||
                  memory_->find_window(recv_, call.count * element_bytes_).window != nullptr);
  if (is_reduction(call)) WEIR_RETURN_IF_ERROR(prepare_reduction(call, factor));
  prepare_copies();
  return {};
}

// Where this process has no kernels, or the stream's device does not reach all scratch, CUDA
// copies.
void StreamCall::prepare_copies() {
  std::string reason;
  const DeviceKernels* kernels = writes_recv_ ? memory_->kernels(&reason) : nullptr;
  if (kernels != nullptr) copies_ = kernels->copies;
}

Status StreamCall::prepare_reduction(const engine::Call& call, const void* factor) {
  std::string reason;
  const DeviceKernels* kernels = memory_->kernels(&reason);
  if (kernels == nullptr) {
    return Status(Code::kSystem, fmt::format("{}: {}", calls_.function(), reason));
  }
  kernel_ = kernels->of(call.type);
  fold_ = fold_of(call);
  if (call.average) divisor_ = memory_->rank_count();
  if (call.scaled) {
    is_scaled_ = true;
    std::memcpy(factor_, call.scale, sizeof factor_);
    factor_memory_ = static_cast<const char*>(factor);
  }
  return {};
}

std::vector<Rank> StreamCall::writers() const {
  if (schedule_ != nullptr) return schedule_->writers();
  std::vector<Rank> writers;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    if (program_.awaits(rank)) writers.push_back(rank);
  }
  return writers;
}

void StreamCall::check_first(std::function<void()> check) {
  if (host_copies_ == nullptr) host_copies_ = std::make_shared<HostCopies>();
  host_copies_->check = std::move(check);
}

void StreamCall::enqueue_check() {
  if (host_copies_ == nullptr || host_copies_->check == nullptr) return;
  calls_.call_on_host([](void* argument) { static_cast<HostCopies*>(argument)->check(); },
                      host_copies_.get());
}

void StreamCall::wait_for(uint32_t* word) {
  calls_.wait(address(word), 1);
  calls_.write(address(word), 0);
}

Status StreamCall::enqueue_step() {
  if (!calls_.ok() || next_ == step_count()) return calls_.status();
  if (next_ == 0) {
    enqueue_check();
    calls_.write(started_, number_);
    if (repeats_) calls_.write(ended_, 0);
    // When the stream has come to the call.
    if (factor_memory_ != nullptr) {
      copy(memory_->factor_room(), kScratch, factor_memory_,
           cuda::place_of(calls_.driver(), factor_memory_), element_bytes_);
    }
  }
  if (scheduled_) {
    scheduled_->step(next_, &ops_);
  } else {
    program_.step(next_, &ops_);
  }
  for (const StreamOp& op : ops_) {
    if (op.kind == StreamOp::Kind::kCopy) {
      add_copy(op);
      continue;
    }
    make_copies();
    if (op.kind == StreamOp::Kind::kWait) {
      calls_.wait(memory_->flag(op.flag), op.value);
    } else if (op.kind == StreamOp::Kind::kSet) {
      calls_.write(memory_->flag(op.flag), op.value);
    } else {
      reduce(op);
    }
  }
  make_copies();
  ++next_;
  if (next_ == step_count()) calls_.write(ended_, number_);
  calls_.flush();
  return calls_.status();
}

cuda::MemoryPlace StreamCall::place_of(const StreamPlace& place) const {
  if (place.memory == StreamBuffer::kSend) return send_place_;
  return place.memory == StreamBuffer::kRecv ? recv_place_ : kScratch;
}

char* StreamCall::at(const StreamPlace& place) const {
  switch (place.memory) {
    case StreamBuffer::kSend:
      return const_cast<char*>(send_) + place.offset;
    case StreamBuffer::kRecv:
      return recv_ + place.offset;
    case StreamBuffer::kPeerSend:
      return windows_.send.window->at(
          place.rank, windows_.send.offset + place.rank * windows_.stride + place.offset);
    case StreamBuffer::kPeerRecv:
      return windows_.recv.window->at(place.rank, windows_.recv.offset + place.offset);
    default:
      return memory_->scratch(place.rank) + place.offset;
  }
}

bool StreamCall::reads_peer(const StreamOp& op) const {
  return op.from.memory != StreamBuffer::kSend && op.from.rank != memory_->rank();
}

bool StreamCall::is_for_kernels(const StreamPlace& place) const {
  if (place.memory == StreamBuffer::kSend) return reads_send_;
  return place.memory != StreamBuffer::kRecv || writes_recv_;
}

void StreamCall::add_copy(const StreamOp& op) {
  if (op.bytes == 0 || at(op.to) == at(op.from)) return;
  // A schedule may send on at once what it has received.
  if (scheduled_ && (needs_one_left(op) || copies_left_.size() == kernels::kRanksMax)) {
    make_copies();
  }
  copies_left_.push_back(op);
}

// Whether it touches what a copy that is left to be made writes, or writes what that reads.
bool StreamCall::needs_one_left(const StreamOp& op) const {
  const auto overlap = [](const char* a, uint64_t a_bytes, const char* b, uint64_t b_bytes) {
    return std::less<>()(a, b + b_bytes) && std::less<>()(b, a + a_bytes);
  };
  return std::any_of(copies_left_.begin(), copies_left_.end(), [&](const StreamOp& left) {
    return overlap(at(op.from), op.bytes, at(left.to), left.bytes) ||
           overlap(at(op.to), op.bytes, at(left.to), left.bytes) ||
           overlap(at(op.to), op.bytes, at(left.from), left.bytes);
  });
}

void StreamCall::make_copies() {
  kernels::CopyArguments together;
  const bool any_peer = std::any_of(copies_left_.begin(), copies_left_.end(),
                                    [this](const StreamOp& op) { return reads_peer(op); });
  for (const StreamOp& op : copies_left_) {
    if (copies_ != nullptr && any_peer && copies_left_.size() > 1 && is_for_kernels(op.to) &&
        is_for_kernels(op.from)) {
      together.copies[together.count++] = {at(op.to), at(op.from), op.bytes};
    } else {
      copy_by_cuda(op);
    }
  }
  copies_left_.clear();
  if (together.count == 0) return;
  calls_.launch(copies_, kernels::copy_block_count(together), kernels::kCopyThreads, &together);
}

void StreamCall::copy_by_cuda(const StreamOp& op) {
  copy(at(op.to), place_of(op.to), at(op.from), place_of(op.from), op.bytes);
  if (op.contributes && is_scaled_) scale(at(op.to), op.count);
}

void StreamCall::copy(char* to, cuda::MemoryPlace to_place, const char* from,
                      cuda::MemoryPlace from_place, uint64_t bytes) {
  if (bytes == 0 || to == from) return;
  if (cuda::is_of_host(to_place) && cuda::is_of_host(from_place)) {
    copy_on_host(to, from, bytes);
    return;
  }
  const bool to_plain = to_place == cuda::MemoryPlace::kPlain;
  const bool from_plain = from_place == cuda::MemoryPlace::kPlain;
  if (!to_plain && !from_plain) return calls_.copy(to, from, bytes);
  char* const pinned = host_copies_->pinned->bytes;
  for (uint64_t at = 0; at < bytes; at += memory_->slot_bytes()) {
    const uint64_t piece = std::min(bytes - at, memory_->slot_bytes());
    if (from_plain) copy_on_host(pinned, from + at, piece);
    calls_.copy(to_plain ? pinned : to + at, from_plain ? pinned : from + at, piece);
    if (to_plain) copy_on_host(to + at, pinned, piece);
  }
}

void StreamCall::copy_on_host(void* to, const void* from, uint64_t bytes) {
  host_copies_->all.push_back({to, from, bytes});
  calls_.copy_on_host(&host_copies_->all.back());
}

// In place: the product is rounded to the type before it is folded.
void StreamCall::scale(char* data, uint64_t count) {
  kernels::ReduceArguments arguments;
  arguments.count = count;
  arguments.source_count = arguments.destination_count = 1;
  arguments.sources[0] = arguments.destinations[0] = data;
  if (factor_memory_ != nullptr) {
    arguments.scaled = kernels::kScaledByMemory;
    arguments.scales[0] = reinterpret_cast<uintptr_t>(memory_->factor_room());
  } else {
    arguments.scaled = kernels::kScaled;
    std::memcpy(&arguments.scales[0], factor_, sizeof factor_);
  }
  launch(&arguments);
}

// In pieces of a slot, where the result passes through this rank's own room.
void StreamCall::reduce(const StreamOp& op) {
  const bool passes = op.stores && !op.keeps && !writes_recv_;
  const bool is_limited = passes || !op.operands.empty();
  const uint64_t most = is_limited ? memory_->slot_bytes() / element_bytes_ : op.count;
  for (uint64_t begin = 0; begin < op.count; begin += most) {
    StreamOp piece = op;
    piece.count = std::min(op.count - begin, most);
    piece.from.offset += begin * element_bytes_;
    piece.to.offset += begin * element_bytes_;
    piece.kept_offset += begin * element_bytes_;
    for (StreamPlace& operand : piece.operands) operand.offset += begin * element_bytes_;
    reduce_piece(piece);
  }
}

void StreamCall::reduce_piece(const StreamOp& op) {
  kernels::ReduceArguments arguments;
  arguments.count = op.count;
  arguments.source_count = memory_->rank_count();
  arguments.fold = fold_;
  arguments.divisor = op.divides ? divisor_ : 1;
  for (Rank rank = 0; rank < memory_->rank_count() && op.operands.empty(); ++rank) {
    arguments.sources[rank] = at({op.from.memory, rank, op.from.offset});
  }
  if (!op.operands.empty()) set_sources(op, &arguments);
  char* const kept = memory_->scratch(memory_->rank()) + op.kept_offset;
  const bool stores_here = op.stores && writes_recv_;
  char* const other = op.keeps ? kept : memory_->own_room();
  uint32_t count = 0;
  if (stores_here) arguments.destinations[count++] = at(op.to);
  if (op.keeps || !stores_here) arguments.destinations[count++] = other;
  arguments.destination_count = count;
  launch(&arguments);
  if (op.stores && !writes_recv_) {
    copy(at(op.to), recv_place_, other, kScratch, op.count * element_bytes_);
  }
}

// The caller's own buffer, where kernels cannot read it, by way of this rank's own room.
void StreamCall::set_sources(const StreamOp& op, kernels::ReduceArguments* arguments) {
  arguments->source_count = static_cast<uint32_t>(op.operands.size());
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const StreamPlace& operand = op.operands[i];
    char* from = at(operand);
    const bool is_unaligned = reinterpret_cast<uintptr_t>(from) % element_bytes_ != 0;
    if ((operand.memory == StreamBuffer::kSend && (!reads_send_ || is_unaligned)) ||
        (operand.memory == StreamBuffer::kRecv && !writes_recv_)) {
      copy(memory_->own_room(), kScratch, from, place_of(operand), op.count * element_bytes_);
      from = memory_->own_room();
    }
    arguments->sources[i] = from;
  }
}

void StreamCall::launch(kernels::ReduceArguments* arguments) {
  calls_.launch(kernel_, kernels::lay_out(arguments, element_bytes_), kernels::kBlockThreads,
                arguments);
}

}  // namespace weir::comm
