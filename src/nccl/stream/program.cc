// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/program.h"

#include <algorithm>
#include <vector>

namespace weir::nccl {

namespace {

cuda::DevicePointer address(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

class Program {
 public:
  Program(const cuda::Driver& driver, cuda::Stream stream, Flight& flight)
      : driver_(driver), stream_(stream), flight_(flight) {}

  Outcome enqueue() {
    for (const Lane& lane : flight_.lanes) {
      if (lane.scalar_on_device) copy_scalar(lane);
    }
    if (flight_.gated) {
      gated();
    } else {
      pipelined();
    }
    flush();
    return std::move(outcome_);
  }

 private:
  void gated() {
    for (const Lane& lane : flight_.lanes) copy_in(lane, 0);
    ring(flight_.door());
    await(flight_.door());
    for (const Lane& lane : flight_.lanes) copy_out(lane, 0);
    clear(flight_.door());
  }

  void pipelined() {
    size_t steps = 0;
    for (const Lane& lane : flight_.lanes) {
      steps = std::max(steps, lane.cut.slice_count + lane.depth);
    }
    for (size_t step = 0; step < steps; ++step) {
      for (const Lane& lane : flight_.lanes) {
        if (step < lane.depth || step - lane.depth >= lane.cut.slice_count) continue;
        Mailbox& mailbox = flight_.mailbox(lane, step - lane.depth);
        await(mailbox);
        copy_out(lane, step - lane.depth);
        clear(mailbox);
      }
      for (const Lane& lane : flight_.lanes) {
        if (step >= lane.cut.slice_count) continue;
        copy_in(lane, step);
        ring(flight_.mailbox(lane, step));
      }
    }
  }

  void copy_scalar(const Lane& lane) {
    copy(flight_.staging->bytes + lane.scalar_offset, lane.operation.factor->device_scalar,
         lane.cut.element_bytes);
  }

  void copy_in(const Lane& lane, size_t slice) {
    if (!lane.send_on_device) return;
    const size_t bytes = lane.slice_width(slice) * lane.cut.element_bytes;
    const auto* from = static_cast<const char*>(lane.operation.send);
    move(flight_.send_stage(lane, slice), bytes, from + begin(lane, slice), stride(lane),
         lane.cut.send_blocks, bytes);
  }

  void copy_out(const Lane& lane, size_t slice) {
    if (!lane.recv_on_device) return;
    const size_t bytes = lane.slice_width(slice) * lane.cut.element_bytes;
    auto* to = static_cast<char*>(lane.operation.recv);
    move(to + begin(lane, slice), stride(lane), flight_.recv_stage(lane, slice), bytes,
         lane.cut.recv_blocks, bytes);
  }

  static size_t begin(const Lane& lane, size_t slice) {
    return slice * lane.cut.width * lane.cut.element_bytes;
  }
  static size_t stride(const Lane& lane) { return lane.operation.count * lane.cut.element_bytes; }

  void move(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
            size_t bytes) {
    if (to_stride == bytes && from_stride == bytes) {
      copy(to, from, blocks * bytes);
      return;
    }
    for (size_t i = 0; i < blocks; ++i) copy(to + i * to_stride, from + i * from_stride, bytes);
  }

  void copy(void* to, const void* from, size_t bytes) {
    flush();
    if (bytes == 0 || !outcome_.ok()) return;
    hold("cuMemcpyAsync", driver_.memcpy_async(address(to), address(from), bytes, stream_));
  }

  void ring(Mailbox& mailbox) {
    ++rings_;
    add(cuda::kWriteValue32, &mailbox.ready, flight_.number, cuda::kWriteDefault);
  }
  void await(Mailbox& mailbox) { add(cuda::kWaitValue32, &mailbox.done, 1, cuda::kWaitEqual); }
  void clear(Mailbox& mailbox) { add(cuda::kWriteValue32, &mailbox.done, 0, cuda::kWriteDefault); }

  void add(uint32_t operation, uint32_t* flag, uint32_t value, unsigned flags) {
    entries_.push_back({operation, address(flag), value, flags, 0, 0});
    if (entries_.size() == cuda::kBatchMax) flush();
  }

  void flush() {
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
      if (outcome_.ok()) flight_.rings = rings_;
    }
    entries_.clear();
  }

  void hold(const char* call, cuda::Result result) {
    if (result != cuda::kSuccess) {
      outcome_ = cuda::failed(driver_, flight_.lanes[0].operation.function, call, result);
    }
  }

  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  Flight& flight_;
  std::vector<cuda::BatchEntry> entries_;
  size_t rings_ = 0;  // with those that are not enqueued yet
  Outcome outcome_;
};

}  // namespace

Outcome enqueue_program(const cuda::Driver& driver, cuda::Stream stream, Flight& flight) {
  return Program(driver, stream, flight).enqueue();
}

}  // namespace weir::nccl
