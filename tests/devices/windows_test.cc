// SPDX-License-Identifier: Apache-2.0
// weir_register_symmetric between threads, each with a device of its own, on the strict libcuda.
#include "devices/windows_cases.h"

namespace weir::test {
namespace {

TEST(DeviceWindows, EveryCollectiveHoldsTheHostsResult) {
  for (const int n : {1, 2, 3, 4}) {
    run_threads_on_devices(n, [](weir_comm_t comm, int ranks, int rank) {
      Registered memory(comm, ranks);
      every_collective_in(memory, comm, ranks, rank);
      memory.deregister();
      every_collective_in(memory, comm, ranks, rank);
    });
  }
}

TEST(DeviceWindows, PeersReadRegisteredMemoryWhereItLiesUntilItIsDeregistered) {
  run_threads_on_devices(3, [](weir_comm_t comm, int n, int rank) {
    Registered memory(comm, n);
    expect_use(true, memory, comm, rank);
    memory.deregister();
    expect_use(false, memory, comm, rank);
    memory.register_it(2 * static_cast<size_t>(n) * kWindowCount * sizeof(int));
    expect_use(true, memory, comm, rank);
    memory.deregister();
  });
}

// What lies behind the fewest bytes is copied.
TEST(DeviceWindows, RanksMayRegisterDifferentSizes) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    Registered memory(comm, n);
    memory.deregister();
    const size_t half = kWindowCount * sizeof(int) / 2;
    memory.register_it(rank == 0 ? half : 4 * half);
    expect_use(false, memory, comm, rank);
    every_collective_in(memory, comm, n, rank);
    memory.deregister();
    memory.register_it(rank == 0 ? 2 * half : 4 * half);
    expect_use(true, memory, comm, rank);
    every_collective_in(memory, comm, n, rank);
    memory.deregister();
  });
}

TEST(DeviceWindows, ARankWithMemoryOfTheHostOrNoneLetsAllCopy) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    std::vector<int> host(1000);
    weir_window_t window = nullptr;
    Registered memory(comm, n);
    memory.deregister();
    for (const bool none : {false, true}) {
      void* const mine = rank == 1 ? memory.send() : none ? nullptr : host.data();
      EXPECT_WEIR(comm, weir_register_symmetric(comm, mine, mine == nullptr ? 0 : 4000, &window));
      EXPECT_NE(window, nullptr);
      expect_use(false, memory, comm, rank);
      EXPECT_WEIR(comm, weir_deregister(comm, window));
    }
  });
}

TEST(DeviceWindows, MemoryOfTheHostAloneIsAsWithoutIt) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    std::vector<int> data(100'000, rank + 1);
    weir_window_t window = nullptr;
    EXPECT_WEIR(comm,
                weir_register_symmetric(comm, data.data(), data.size() * sizeof(int), &window));
    EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_INT32,
                                      WEIR_SUM, nullptr));
    EXPECT_EQ(data, std::vector<int>(100'000, 3));
    EXPECT_WEIR(comm, weir_deregister(comm, window));
  });
}

// An allocation made by mapping, so that another one can take its place.
class Mapped {
 public:
  Mapped(size_t bytes, int device) : device_(device) {
    size_t unit = 0;
    EXPECT_CUDA(cuMemGetAllocationGranularity(&unit, &wanted(), 0));
    bytes_ = (bytes + unit - 1) / unit * unit;
    EXPECT_CUDA(cuMemAddressReserve(&address_, bytes_, 0, 0, 0));
    map();
  }
  // It stays: a peer whose stream was let go after an error may still read it.
  ~Mapped() = default;
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  int* data() const { return reinterpret_cast<int*>(static_cast<uintptr_t>(address_)); }
  void replace() {
    EXPECT_CUDA(cuMemUnmap(address_, bytes_));
    map();
  }

 private:
  const cuda::AllocationProperties& wanted() {
    wanted_.type = cuda::kAllocationPinned;
    wanted_.handle_types = cuda::kHandleDescriptor;
    wanted_.location = {cuda::kLocationDevice, device_};
    return wanted_;
  }
  void map() {
    cuda::AllocationHandle handle = 0;
    EXPECT_CUDA(cuMemCreate(&handle, bytes_, &wanted(), 0));
    EXPECT_CUDA(cuMemMap(address_, bytes_, 0, handle, 0));
    EXPECT_CUDA(cuMemRelease(handle));
    // Of both ranks' devices.
    const cuda::MemoryAccess access[] = {{{cuda::kLocationDevice, 0}, cuda::kAccessReadWrite},
                                         {{cuda::kLocationDevice, 1}, cuda::kAccessReadWrite}};
    EXPECT_CUDA(cuMemSetAccess(address_, bytes_, access, 2));
  }

  int device_;
  cuda::AllocationProperties wanted_;
  size_t bytes_ = 0;
  cuda::DevicePointer address_ = 0;
};

// What peers have mapped may be what was there before.
TEST(DeviceWindows, MemoryThatWasFreedIsNotUsedAndTheRanksLearnOfIt) {
  WEIR_NEEDS_STRICT_CUDA();
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    Registered others(comm, n);
    const size_t bytes = kWindowCount * sizeof(int);
    Mapped memory(bytes, rank);
    weir_window_t window = nullptr;
    EXPECT_WEIR(comm, weir_register_symmetric(comm, memory.data(), bytes, &window));
    const auto gather = [&] {
      return weir_all_gather(comm, memory.data(), others.recv(), kWindowCount, WEIR_INT32, nullptr);
    };
    const auto copies = [rank] { return strict_cuda_device_copies(rank); };
    int before = copies();
    EXPECT_WEIR(comm, gather());
    EXPECT_EQ(copies(), before);
    // On all ranks: it is copied.
    memory.replace();
    EXPECT_WEIR(comm, weir_barrier(comm, nullptr));
    EXPECT_WEIR(comm, gather());
    EXPECT_GT(copies(), before);
    EXPECT_WEIR(comm, weir_deregister(comm, window));
    // On one rank.
    EXPECT_WEIR(comm, weir_register_symmetric(comm, memory.data(), bytes, &window));
    before = copies();
    EXPECT_WEIR(comm, gather());
    EXPECT_EQ(copies(), before);
    if (rank == 1) memory.replace();
    EXPECT_WEIR(comm, weir_barrier(comm, nullptr));
    EXPECT_EQ(gather(), WEIR_ERROR_MISMATCH);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("places of windows"), std::string::npos) << text;
    EXPECT_WEIR(comm, weir_deregister(comm, window));
    others.deregister();
  });
}

TEST(DeviceWindows, BuffersAtOtherOffsetsAreAMismatch) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    Registered memory(comm, n);
    EXPECT_EQ(weir_all_gather(comm, memory.send() + 64 * rank, memory.recv(), kWindowCount,
                              WEIR_INT32, nullptr),
              WEIR_ERROR_MISMATCH);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("other places of windows"), std::string::npos) << text;
    memory.deregister();
  });
}

TEST(DeviceWindows, ACommunicatorWithoutTheDirectWayRegistersAndCopies) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  run_threads_on_one_device(2, [](weir_comm_t comm, int n, int rank) {
    Registered memory(comm, n);  // ranks that share a device need WEIR_DIRECT=1
    refused(comm, n, rank, {"2 ranks", "WEIR_DIRECT=1"});
    memory.deregister();
  });
}

TEST(DeviceWindows, ItMayBeTheFirstCallWithMemoryOfADevice) {
  WEIR_NEEDS_DEVICES(2);
  run_threads(2, [](int rank, weir_comm_t comm) {
    use_device(rank);  // after the communicator was made
    Registered memory(comm, 2);
    expect_use(true, memory, comm, rank);
    memory.deregister();
  });
}

TEST(DeviceWindows, AGraphReadsThemAgainAndAgain) {
  run_threads_on_devices(3, [](weir_comm_t comm, int n, int rank) {
    Registered memory(comm, n);
    const Stream stream;
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    {
      const Graph graph(stream, [&] {
        EXPECT_WEIR(comm, weir_all_reduce(comm, memory.send(), memory.recv(), kWindowCount,
                                          WEIR_INT32, WEIR_SUM, nullptr));
        EXPECT_WEIR(comm, weir_reduce(comm, memory.recv(), memory.send(), kWindowCount, WEIR_INT32,
                                      WEIR_SUM, 1, nullptr));
        EXPECT_WEIR(comm, weir_broadcast(comm, memory.send(), memory.recv(), kWindowCount,
                                         WEIR_INT32, 1, nullptr));
      });
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
      for (int round = 0; round < 4; ++round) {
        memory.set(std::vector<int>(kWindowCount, rank + round));
        graph.launch(stream);
        stream.synchronize();
        const int sum = n * round + n * (n - 1) / 2;
        EXPECT_EQ(memory.received(kWindowCount), std::vector<int>(kWindowCount, n * sum));
      }
    }
    memory.deregister();
  });
}

TEST(DeviceWindows, AWindowThatWasDeregisteredIsToldSo) {
  run_threads(2, [](int, weir_comm_t comm) {
    std::vector<weir_window_t> windows(40);
    int memory[16] = {};
    for (size_t i = 0; i < windows.size(); ++i) {
      EXPECT_WEIR(comm, i % 2 == 0
                            ? weir_register(comm, memory, sizeof memory, &windows[i])
                            : weir_register_symmetric(comm, memory, sizeof memory, &windows[i]));
    }
    for (weir_window_t it : windows) EXPECT_WEIR(comm, weir_deregister(comm, it));
    for (weir_window_t it : windows) {
      EXPECT_EQ(weir_deregister(comm, it), WEIR_ERROR_INVALID_ARGUMENT);
      const std::string text = weir_last_error(comm);
      EXPECT_NE(text.find("the window was deregistered"), text.npos) << text;
    }
  });
}

TEST(DeviceWindows, WrongArgumentsAreRefusedAndNothingIsRegistered) {
  run_threads(1, [](int, weir_comm_t comm) {
    weir_window_t window = nullptr;
    EXPECT_EQ(weir_register_symmetric(comm, nullptr, 8, &window), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(window, nullptr);
    EXPECT_EQ(weir_register_symmetric(comm, &window, 8, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_WEIR(comm, weir_deregister(comm, nullptr));
  });
}

}  // namespace
}  // namespace weir::test
