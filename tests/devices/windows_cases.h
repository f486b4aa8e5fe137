// SPDX-License-Identifier: Apache-2.0
// Memory of devices that all ranks register with weir_register_symmetric, for tests on the strict
// libcuda.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "devices/streams_cases.h"

namespace weir::test {

inline constexpr size_t kWindowCount = 40'960;  // of int32, so that windows are used

// As weir_register_symmetric says.
inline bool uses_windows(const Case& it) { return std::string_view(it.name) != "scatter"; }

// Room for the buffers of any collective, one after the other.
class Registered {
 public:
  Registered(weir_comm_t comm, int n)
      : comm_(comm),
        blocks_(static_cast<size_t>(n) * kWindowCount),
        memory_(std::vector<int>(2 * blocks_, 0)) {
    register_it(2 * blocks_ * sizeof(int));
  }
  void register_it(size_t bytes) {
    EXPECT_WEIR(comm_, weir_register_symmetric(comm_, memory_.data(), bytes, &window_));
    EXPECT_NE(window_, nullptr);
  }
  void deregister() {
    EXPECT_WEIR(comm_, weir_deregister(comm_, window_));
    window_ = nullptr;
  }
  int* send() const { return memory_.data(); }
  int* recv() const { return memory_.data() + blocks_; }
  void set(const std::vector<int>& send) const {
    std::vector<int> all = send;
    all.resize(2 * blocks_, -1);
    memory_.set(all);
  }
  std::vector<int> received(size_t count) const {
    const std::vector<int> all = memory_.get();
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(blocks_);
    return {begin, begin + static_cast<std::ptrdiff_t>(count)};
  }

 private:
  weir_comm_t comm_;
  size_t blocks_;
  DeviceArray<int> memory_;
  weir_window_t window_ = nullptr;
};

// Every collective in the memory, beside the same on memory of the host.
inline void every_collective_in(const Registered& memory, weir_comm_t comm, int n, int rank,
                                weir_redop_t op = WEIR_SUM) {
  const Stream stream;
  int seed = 0;
  for (const Case& it : kCases) {
    for (const size_t count : {kWindowCount, size_t{1000}}) {
      const int root = seed % n;
      const std::string_view name = it.name;
      const bool receives =
          !it.is_rooted || rank == root || name == "broadcast" || name == "scatter";
      std::vector<int> input(count * blocks(it.send_blocks, n));
      for (size_t i = 0; i < input.size(); ++i) {
        input[i] = static_cast<int>(i % 1000) * (rank + 1) + seed;
      }
      std::vector<int> expected(count * blocks(it.recv_blocks, n), -1);
      ASSERT_WEIR(comm, call(it, comm, input.data(), expected.data(), count, WEIR_INT32, op, root,
                             nullptr));
      memory.set(input);
      perform(comm, kWays[seed % 4], stream, [&](weir_request_t* request) {
        return call(it, comm, memory.send(), memory.recv(), count, WEIR_INT32, op, root, request);
      });
      if (!receives) std::fill(expected.begin(), expected.end(), -1);
      EXPECT_EQ(memory.received(expected.size()) == expected, true)
          << it.name << ", count " << count << ", rank " << rank << " of " << n;
      ++seed;
    }
  }
}

// Whether an all-gather reads the memory of the peers where it lies: without windows each round
// first copies into the rank's own slot.
inline void expect_use(bool uses, const Registered& memory, weir_comm_t comm, int rank) {
  const int before = cuda::is_strict() ? strict_cuda_device_copies(rank) : 0;
  EXPECT_WEIR(
      comm, weir_all_gather(comm, memory.send(), memory.recv(), kWindowCount, WEIR_INT32, nullptr));
  if (!cuda::is_strict()) return;
  EXPECT_EQ(strict_cuda_device_copies(rank) - before == 0, uses) << "rank " << rank;
}

}  // namespace weir::test
