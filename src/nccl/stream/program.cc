// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/program.h"

#include <algorithm>
#include <vector>

#include "core/base/check.h"

namespace weir::nccl {

namespace {

cuda::DevicePointer address(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

// In a block of the caller's buffer.
size_t begin(const Lane& lane, size_t slice) {
  return slice * lane.cut.width * lane.cut.element_bytes;
}
size_t stride(const Lane& lane) { return lane.operation.count * lane.cut.element_bytes; }

}  // namespace

Program::Program(const cuda::Driver& driver, cuda::Stream stream, std::vector<Flight*> flights)
    : driver_(driver),
      stream_(stream),
      flights_(std::move(flights)),
      rings_(flights_.size(), 0),
      enqueued_rings_(flights_.size(), 0) {
  if (!takes_turns()) return;
  WEIR_CHECK(flights_.size() == 1 && flights_[0]->lanes.size() == 1,
             "slices take turns in the stream only where nothing else waits for it");
  const Lane& lane = flights_[0]->lanes[0];
  step_count_ = lane.cut.slice_count + lane.depth;
}

Outcome Program::enqueue_step() {
  if (step_ == 0) {
    for (const Flight* flight : flights_) {
      for (const Lane& lane : flight->lanes) {
        if (lane.scalar_on_device) copy_scalar(*flight, lane);
      }
    }
  }
  if (takes_turns()) {
    turn(*flights_[0], flights_[0]->lanes[0], step_);
  } else if (step_ == 0) {
    hand_over();
  } else {
    take_back();
  }
  ++step_;
  // Within the turns, what ends one goes with what begins the next one.
  if (!takes_turns() || step_ == step_count_) flush();
  return outcome_;
}

void Program::hand_over() {
  for (size_t i = 0; i < flights_.size(); ++i) {
    const Flight& flight = *flights_[i];
    if (flight.gated) {
      for (const Lane& lane : flight.lanes) copy_in(flight, lane, 0);
      ring(i, flight.door());
      continue;
    }
    for (const Item& item : flight.items) {
      const Lane& lane = flight.lanes[item.lane];
      copy_in(flight, lane, item.slice);
      ring(i, flight.mailbox(lane, item.slice));
    }
  }
}

void Program::take_back() {
  for (const Flight* flight : flights_) {
    if (flight->gated) {
      await(flight->door());
      for (const Lane& lane : flight->lanes) copy_out(*flight, lane, 0);
      clear(flight->door());
      continue;
    }
    take_back(*flight, true);
    take_back(*flight, false);
  }
}

// Those that it copies come first: it has not so much to wait for when it comes to the others.
void Program::take_back(const Flight& flight, bool copied) {
  for (const Item& item : flight.items) {
    const Lane& lane = flight.lanes[item.lane];
    if (lane.recv_on_device != copied) continue;
    Mailbox& mailbox = flight.mailbox(lane, item.slice);
    await(mailbox);
    copy_out(flight, lane, item.slice);
    clear(mailbox);
  }
}

void Program::turn(const Flight& flight, const Lane& lane, size_t step) {
  if (step >= lane.depth) {
    Mailbox& mailbox = flight.mailbox(lane, step - lane.depth);
    await(mailbox);
    copy_out(flight, lane, step - lane.depth);
    clear(mailbox);
  }
  if (step < lane.cut.slice_count) {
    copy_in(flight, lane, step);
    ring(0, flight.mailbox(lane, step));
  }
}

void Program::copy_scalar(const Flight& flight, const Lane& lane) {
  copy(flight.staging->bytes + lane.scalar_offset, lane.operation.factor->device_scalar,
       lane.cut.element_bytes);
}

void Program::copy_in(const Flight& flight, const Lane& lane, size_t slice) {
  if (!lane.send_on_device || flight.copied_by_proxy) return;
  const size_t bytes = lane.slice_width(slice) * lane.cut.element_bytes;
  const auto* from = static_cast<const char*>(lane.operation.send);
  move(flight.send_stage(lane, slice), bytes, from + begin(lane, slice), stride(lane),
       lane.cut.send_blocks, bytes);
}

void Program::copy_out(const Flight& flight, const Lane& lane, size_t slice) {
  if (!lane.recv_on_device || flight.copied_by_proxy) return;
  const size_t bytes = lane.slice_width(slice) * lane.cut.element_bytes;
  auto* to = static_cast<char*>(lane.operation.recv);
  move(to + begin(lane, slice), stride(lane), flight.recv_stage(lane, slice), bytes,
       lane.cut.recv_blocks, bytes);
}

void Program::move(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
                   size_t bytes) {
  if (to_stride == bytes && from_stride == bytes) {
    copy(to, from, blocks * bytes);
    return;
  }
  for (size_t i = 0; i < blocks; ++i) copy(to + i * to_stride, from + i * from_stride, bytes);
}

void Program::copy(void* to, const void* from, size_t bytes) {
  flush();
  if (bytes == 0 || !outcome_.ok()) return;
  hold("cuMemcpyAsync", driver_.memcpy_async(address(to), address(from), bytes, stream_));
}

void Program::ring(size_t index, Mailbox& mailbox) {
  ++rings_[index];
  add(cuda::kWriteValue32, &mailbox.ready, flights_[index]->number, cuda::kWriteDefault);
}
void Program::await(Mailbox& mailbox) {
  add(cuda::kWaitValue32, &mailbox.done, 1, cuda::kWaitEqual);
}
void Program::clear(Mailbox& mailbox) {
  add(cuda::kWriteValue32, &mailbox.done, 0, cuda::kWriteDefault);
}

void Program::add(uint32_t operation, uint32_t* flag, uint32_t value, unsigned flags) {
  entries_.push_back({operation, address(flag), value, flags, 0, 0});
  if (entries_.size() == cuda::kBatchMax) flush();
}

void Program::flush() {
  if (!entries_.empty() && outcome_.ok()) {
    if (driver_.stream_batch_mem_op != nullptr && entries_.size() > 1) {
      hold("cuStreamBatchMemOp",
           driver_.stream_batch_mem_op(stream_, static_cast<unsigned>(entries_.size()),
                                       entries_.data(), 0));
    } else {
      for (const cuda::BatchEntry& it : entries_) {
        if (!outcome_.ok()) break;
        const auto value = static_cast<uint32_t>(it.value);
        if (it.operation == cuda::kWaitValue32) {
          hold("cuStreamWaitValue32",
               driver_.stream_wait_value32(stream_, it.address, value, it.flags));
        } else {
          hold("cuStreamWriteValue32",
               driver_.stream_write_value32(stream_, it.address, value, it.flags));
        }
      }
    }
    if (outcome_.ok()) enqueued_rings_ = rings_;
  }
  entries_.clear();
}

void Program::hold(const char* call, cuda::Result result) {
  if (result != cuda::kSuccess) {
    outcome_ = cuda::failed(driver_, flights_[0]->lanes[0].operation.function, call, result);
  }
}

}  // namespace weir::nccl
