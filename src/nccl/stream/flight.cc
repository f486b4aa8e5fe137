// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/flight.h"

#include <algorithm>
#include <cstring>

#include "nccl/stream/pause.h"

namespace weir::nccl {

namespace {

// Rows of staging begin at this multiple.
constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A slice of several blocks is no contiguous part of the caller's buffer.
bool needs_stage(const Cut& cut, size_t blocks, bool on_device) {
  return blocks > 0 && (on_device || (blocks > 1 && cut.slice_count > 1));
}

// A slice of several blocks between the caller's buffer and the stage, by the host.
void move_blocks(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
                 size_t bytes) {
  if (bytes == 0) return;
  for (size_t i = 0; i < blocks; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

class Runner {
 public:
  // `memory`: of the staging. `answers`: there is a stream that rings and waits.
  Runner(Flight& flight, char* memory, bool answers, const std::atomic<bool>& leave)
      : flight_(flight),
        memory_(memory),
        rings_(answers && !flight.gated),
        last_(rings_ ? flight.rings : flight.items.size()),
        leave_(leave) {
    size_t places = 0;
    for (const Lane& it : flight.lanes) places += it.depth;
    busy_.resize(places);
    running_.reserve(places);
    late_.reserve(places);
  }

  Outcome run() {
    if (flight_.items.size() == 1 && !rings_ && !broken(flight_.items[0])) {
      const Item& item = flight_.items[0];
      fail(start(sliced(item), nullptr));
      if (first_.ok()) unpack(item);
      return first_;
    }
    Pause pause;
    while (done_ + late_.size() < last_ && !leave_.load(std::memory_order_relaxed)) {
      bool moved = start_what_can();
      moved = test_all() || moved;
      if (moved) {
        pause.reset();
      } else if (next_ == last_ && !running_.empty()) {
        wait_for(running_.front());
        running_.erase(running_.begin());
        pause.reset();
      } else {
        pause.wait();
      }
    }
    // Weir's operations hold buffers until they have ended, which they do by their deadlines.
    for (Running& it : running_) wait_for(it);
    for (const Running& it : late_) end_one_sided(it);
    return first_;
  }

 private:
  struct Running {
    Item item;
    weir_request_t request = nullptr;
  };

  bool broken(const Item& item) { return !first_.ok() || lane(item).operation.comm->broken(); }

  void fail(Outcome outcome) {
    if (!outcome.ok() && first_.ok()) first_ = std::move(outcome);
  }

  Lane& lane(const Item& item) { return flight_.lanes[item.lane]; }

  char* stage(size_t offset, size_t row_bytes, const Lane& lane, size_t slice) const {
    return offset == Lane::kNone ? nullptr : memory_ + offset + slice % lane.depth * row_bytes;
  }

  // The operation of one slice, with its data in place.
  Operation sliced(const Item& item) {
    Lane& it = lane(item);
    Operation operation = it.operation;
    operation.count = it.slice_width(item.slice);
    const size_t bytes = operation.count * it.cut.element_bytes;
    const size_t begin = item.slice * it.cut.width * it.cut.element_bytes;
    const size_t stride = it.operation.count * it.cut.element_bytes;
    if (char* to = stage(it.send_offset, it.cut.send_bytes(), it, item.slice); to != nullptr) {
      if (!it.send_on_device) {
        move_blocks(to, bytes, static_cast<const char*>(operation.send) + begin, stride,
                    it.cut.send_blocks, bytes);
      }
      operation.send = to;
    } else if (operation.send != nullptr) {
      operation.send = static_cast<const char*>(operation.send) + begin;
    }
    if (char* to = stage(it.recv_offset, it.cut.recv_bytes(), it, item.slice); to != nullptr) {
      operation.recv = to;
    } else if (operation.recv != nullptr) {
      operation.recv = static_cast<char*>(operation.recv) + begin;
    }
    if (it.scalar_on_device) operation.factor->device_scalar = memory_ + it.scalar_offset;
    return operation;
  }

  // Results that the stream does not take, to where the caller wants them.
  void unpack(const Item& item) {
    Lane& it = lane(item);
    char* from = stage(it.recv_offset, it.cut.recv_bytes(), it, item.slice);
    if (from == nullptr || it.recv_on_device) return;
    const size_t bytes = it.slice_width(item.slice) * it.cut.element_bytes;
    move_blocks(
        static_cast<char*>(it.operation.recv) + item.slice * it.cut.width * it.cut.element_bytes,
        it.operation.count * it.cut.element_bytes, from, bytes, it.cut.recv_blocks, bytes);
  }

  // In which its lane's slices take turns.
  size_t place(const Item& item) {
    const Lane& it = lane(item);
    return it.first_mailbox + item.slice % it.depth;
  }

  bool can_start(const Item& item) {
    if (rings_) return flight_.mailbox(lane(item), item.slice).rung() == flight_.number;
    return !busy_[place(item)];
  }

  // Whatever happens, an item that is begun is finished: the stream waits for it.
  void begin(Running& it) {
    try {
      if (!broken(it.item)) fail(start(sliced(it.item), &it.request));
    } catch (...) {
      fail(outcome_of_exception(lane(it.item).operation.function, std::current_exception()));
    }
  }

  bool start_what_can() {
    bool moved = false;
    while (next_ < last_ && can_start(flight_.items[next_])) {
      Running it{flight_.items[next_++], nullptr};
      if (rings_) flight_.mailbox(lane(it.item), it.item.slice).take();
      busy_[place(it.item)] = true;
      moved = true;
      begin(it);
      if (lane(it.item).one_sided() && !broken(it.item)) {
        late_.push_back(it);
      } else if (it.request != nullptr) {
        running_.push_back(it);  // there is room: each has its place
      } else {
        finish(it, WEIR_OK);
      }
    }
    return moved;
  }

  bool test_all() {
    bool moved = false;
    for (size_t i = 0; i < running_.size();) {
      int done = 0;
      const weir_result_t result = weir_test(&running_[i].request, &done);
      if (done == 0 && running_[i].request != nullptr) {
        ++i;
        continue;
      }
      finish(running_[i], result);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
    }
    return moved;
  }

  void end_one_sided(const Running& it) {
    try {
      if (!broken(it.item)) fail(nccl::finish(lane(it.item).operation));
    } catch (...) {
      fail(outcome_of_exception(lane(it.item).operation.function, std::current_exception()));
    }
    finish(it, WEIR_OK);
  }

  void wait_for(Running& it) { finish(it, weir_wait(&it.request)); }

  void finish(const Running& it, weir_result_t result) {
    if (result != WEIR_OK && first_.ok()) {
      try {
        const Operation& operation = lane(it.item).operation;
        fail(operation.comm->outcome(operation.function, result));
      } catch (...) {
        first_.code = ncclSystemError;  // no memory for the text
      }
    }
    if (!broken(it.item)) unpack(it.item);
    busy_[place(it.item)] = false;
    ++done_;
    if (rings_ && !leave_.load(std::memory_order_relaxed)) {
      flight_.mailbox(lane(it.item), it.item.slice).answer();
    }
  }

  Flight& flight_;
  char* const memory_;
  const bool rings_;   // each slice does, and is answered
  const size_t last_;  // items that will come
  const std::atomic<bool>& leave_;
  std::vector<char> busy_;  // places
  size_t next_ = 0;
  size_t done_ = 0;
  std::vector<Running> running_;
  std::vector<Running> late_;  // one-sided
  Outcome first_;
};

// For a flight that there is no memory to run.
void answer_all(Flight& flight, const std::atomic<bool>& leave) {
  Pause pause;
  for (size_t i = 0; i < flight.rings;) {
    if (leave.load(std::memory_order_relaxed)) return;
    Mailbox& it = flight.mailbox(flight.lanes[flight.items[i].lane], flight.items[i].slice);
    if (it.rung() != flight.number) {
      pause.wait();
      continue;
    }
    it.take();
    it.answer();
    ++i;
    pause.reset();
  }
}

}  // namespace

char* Flight::send_stage(const Lane& lane, size_t slice) const {
  return staging->bytes + lane.send_offset + slice % lane.depth * lane.cut.send_bytes();
}

char* Flight::recv_stage(const Lane& lane, size_t slice) const {
  return staging->bytes + lane.recv_offset + slice % lane.depth * lane.cut.recv_bytes();
}

Mailbox& Flight::mailbox(const Lane& lane, size_t slice) const {
  return staging->mailboxes[gated ? 0 : lane.first_mailbox + slice % lane.depth];
}

std::unique_ptr<Flight> plan_flight(std::vector<Operation> operations,
                                    bool (*on_device)(const void* context, const void* pointer),
                                    const void* context) {
  auto flight = std::make_unique<Flight>();
  flight->comm = operations.front().comm;
  bool any_on_device = false;
  size_t slices_max = 1;
  size_t once_bytes = 0;  // of staging, at depth 1
  for (Operation& operation : operations) {
    Lane& lane = flight->lanes.emplace_back();
    lane.operation = std::move(operation);
    lane.cut = cut(lane.operation, lane.operation.comm->chunk_bytes());
    const bool some = lane.operation.count > 0;
    lane.send_on_device =
        some && lane.cut.send_blocks > 0 && on_device(context, lane.operation.send);
    lane.recv_on_device =
        some && lane.cut.recv_blocks > 0 && on_device(context, lane.operation.recv);
    const auto& factor = lane.operation.factor;
    lane.scalar_on_device = factor.has_value() && factor->device_scalar != nullptr &&
                            on_device(context, factor->device_scalar);
    any_on_device = any_on_device || lane.send_on_device || lane.recv_on_device;
    slices_max = std::max(slices_max, lane.cut.slice_count);
    if (needs_stage(lane.cut, lane.cut.send_blocks, lane.send_on_device)) {
      once_bytes += lane.cut.send_bytes();
    }
    if (needs_stage(lane.cut, lane.cut.recv_blocks, lane.recv_on_device)) {
      once_bytes += lane.cut.recv_bytes();
    }
  }
  flight->gated = slices_max == 1 || !any_on_device;
  const size_t affordable = once_bytes == 0 ? kDepthMax : kStagingMax / once_bytes;
  size_t offset = 0;
  size_t mailbox = 0;
  for (Lane& lane : flight->lanes) {
    lane.depth = std::clamp<size_t>(std::min(affordable, lane.cut.slice_count), 1, kDepthMax);
    lane.first_mailbox = mailbox;
    mailbox += lane.depth;
    const auto place = [&](size_t bytes) {
      const size_t at = offset;
      offset += aligned(lane.depth * bytes);
      return at;
    };
    if (needs_stage(lane.cut, lane.cut.send_blocks, lane.send_on_device)) {
      lane.send_offset = place(lane.cut.send_bytes());
    }
    if (needs_stage(lane.cut, lane.cut.recv_blocks, lane.recv_on_device)) {
      lane.recv_offset = place(lane.cut.recv_bytes());
    }
    if (lane.scalar_on_device) {
      lane.scalar_offset = offset;
      offset += kAlign;
    }
  }
  flight->mailbox_count = flight->gated ? 1 : mailbox;
  flight->byte_count = offset;
  for (size_t slice = 0; slice < slices_max; ++slice) {
    for (size_t i = 0; i < flight->lanes.size(); ++i) {
      if (slice < flight->lanes[i].cut.slice_count) flight->items.push_back({i, slice});
    }
  }
  return flight;
}

void run(Flight& flight, const std::atomic<bool>& leave) {
  if (flight.gated) flight.door().take();
  Outcome outcome;
  try {
    Runner runner(flight, flight.staging->bytes, true, leave);
    outcome = runner.run();
  } catch (...) {
    outcome = outcome_of_exception(flight.lanes[0].operation.function, std::current_exception());
    if (!flight.gated) answer_all(flight, leave);
  }
  if (!outcome.ok()) flight.comm->stream_failed(outcome);
  if (flight.gated && !leave.load(std::memory_order_relaxed)) flight.door().answer();
}

Outcome run_here(Flight& flight, char* memory) {
  static const std::atomic<bool> never{false};
  Runner runner(flight, memory, false, never);
  return runner.run();
}

}  // namespace weir::nccl
