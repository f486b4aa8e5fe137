// SPDX-License-Identifier: Apache-2.0
// The stream's half of flights: copies and flags, as calls to CUDA in the order in which the stream
// is to carry them out. All of them may be captured into a graph. Not thread-safe.
//
// A call may wait: a launch queue has room for about 1024 calls, and a stream that waits for a peer
// takes none. So the programs of one group, whose ranks may be each other's peers, are enqueued in
// steps, by the same thread: the first step of all, which waits for no peer; the turns of those
// whose slices take turns, one of each; the last step of the others.
#pragma once

#include <vector>

#include "nccl/cuda/driver.h"
#include "nccl/outcome.h"
#include "nccl/stream/flight.h"

namespace weir::nccl {

class Program {
 public:
  // Flights that have their stagings and numbers, on `stream`. It rings for all of them before it
  // waits for one, but where a flight's slices take turns, which then is alone.
  Program(const cuda::Driver& driver, cuda::Stream stream, std::vector<Flight*> flights);

  // What comes next. After an error, which stays, nothing does.
  Outcome enqueue_step();
  bool ended() const { return step_ == step_count_ || !outcome_.ok(); }
  bool takes_turns() const { return flights_[0]->takes_turns; }

  // How often the stream will ring for a flight by what has been enqueued.
  size_t rings(size_t flight) const { return enqueued_rings_[flight]; }

 private:
  void hand_over();
  void take_back();
  void take_back(const Flight& flight, bool copied);
  void turn(const Flight& flight, const Lane& lane, size_t step);
  void copy_scalar(const Flight& flight, const Lane& lane);
  void copy_in(const Flight& flight, const Lane& lane, size_t slice);
  void copy_out(const Flight& flight, const Lane& lane, size_t slice);
  void move(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
            size_t bytes);
  void copy(void* to, const void* from, size_t bytes);
  void ring(size_t index, Mailbox& mailbox);
  void await(Mailbox& mailbox);
  void clear(Mailbox& mailbox);
  void add(uint32_t operation, uint32_t* flag, uint32_t value, unsigned flags);
  void flush();
  void hold(const char* call, cuda::Result result);

  const cuda::Driver& driver_;
  const cuda::Stream stream_;
  const std::vector<Flight*> flights_;
  size_t step_ = 0;
  size_t step_count_ = 2;
  std::vector<cuda::BatchEntry> entries_;
  std::vector<size_t> rings_;  // of each flight, with those that are not enqueued yet
  std::vector<size_t> enqueued_rings_;
  Outcome outcome_;
};

}  // namespace weir::nccl
