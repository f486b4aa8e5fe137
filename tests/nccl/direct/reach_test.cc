// SPDX-License-Identifier: Apache-2.0
// How a process comes to another's memory that is made by mapping, on Weir's stand-in for CUDA:
// by descriptors that pass through a control network. Each test is a process that reaches and a
// child of its own that owns; nothing here uses CUDA before it forks.
#include "core/comm/stream/reach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/comm/stream/exports.h"
#include "core/control/network.h"
#include "cuda/driver.h"
#include "nccl/direct/mapped_memory.h"

namespace weir::comm::test {
namespace {

using nccl::test::kMappedUnit;
using nccl::test::MappedMemory;
using nccl::test::open_descriptors;
using nccl::test::use_device;

const bool kEnvironment = [] {
  setenv("WEIR_HOSTCUDA_DEVICES", "2", 1);
  setenv("WEIR_HOSTCUDA_MEMORY", "4G", 1);
  return true;
}();

// The stand-in itself keeps so many descriptors of an allocation that is mapped.
constexpr size_t kOfStandIn = 1;

// Two ends of one talk between the owner and who reaches; values go in their order.
class Talk {
 public:
  Talk(int in, int out) : in_(in), out_(out) {}
  template <typename Value>
  void tell(const Value& value) {
    EXPECT_EQ(write(out_, &value, sizeof value), static_cast<ssize_t>(sizeof value));
  }
  template <typename Value>
  Value hear() {
    Value value{};
    if (read(in_, &value, sizeof value) != static_cast<ssize_t>(sizeof value)) _exit(91);
    return value;
  }
  void meet() {
    tell('m');
    EXPECT_EQ(hear<char>(), 'm');
  }

  // A control network of both; this is `rank` in it.
  void connect(Rank rank) {
    control::NetworkConfig config;
    config.comm_id = 77;
    config.rank = rank;
    config.rank_count = 2;
    config.leaves_host = false;
    auto opened = control::Network::open(config);
    if (!opened.ok()) _exit(94);
    network = opened.take();
    struct Address {
      size_t bytes;
      char text[1024];
    } mine{};
    const std::string address = network->address();
    mine.bytes = address.size();
    std::memcpy(mine.text, address.data(), address.size());
    tell(mine);
    const auto theirs = hear<Address>();
    std::vector<std::string> all(2);
    all[rank] = address;
    all[1 - rank].assign(theirs.text, theirs.bytes);
    if (!network->join(all, now_ns() + 10'000'000'000).ok()) _exit(95);
  }

  std::unique_ptr<control::Network> network;
  std::vector<std::unique_ptr<Offers>> offers;

 private:
  int in_;
  int out_;
};

struct Told {
  ProcessNumber process{};
  DeviceRange range;
};

const cuda::Driver& driver() {
  const cuda::Driver* it = cuda::driver_in_use();
  if (it == nullptr) _exit(92);
  return *it;
}

using Part = std::function<void(Talk& talk)>;

// Each in a process, which is to end well.
void run_pair(const Part& owns, const Part& reaches) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int to_owner[2];
    int to_other[2];
    if (pipe(to_owner) != 0 || pipe(to_other) != 0) _exit(93);
    const pid_t owner = fork();
    if (owner == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(to_owner[1]);
      close(to_other[0]);
      use_device(0);
      Talk talk(to_owner[0], to_other[1]);
      talk.connect(0);
      owns(talk);
      talk.meet();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(to_owner[0]);
    close(to_other[1]);
    use_device(0);
    Talk talk(to_other[0], to_owner[1]);
    talk.connect(1);
    reaches(talk);
    talk.meet();
    int status = 0;
    EXPECT_EQ(waitpid(owner, &status, 0), owner);
    EXPECT_EQ(status, 0);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

class NcclReach : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(kEnvironment); }
};

// `number`: of the memory.
Told told_of(Talk& talk, const void* memory, uint64_t bytes = 0, uint64_t number = 1) {
  talk.offers.push_back(std::make_unique<Offers>(talk.network.get()));
  return {this_process(), range_of(driver(), memory, bytes, talk.offers.back().get(), number)};
}

FetchDescriptor fetch_from_owner(Talk& talk) {
  return [&talk](const Offers::Key& key) {
    return talk.network->fetch(0, key, now_ns() + 300'000'000);
  };
}
Reached reach_all(Talk& talk, const Told& told, uint64_t bytes) {
  return reach(driver(), told.process, told.range, bytes, fetch_from_owner(talk));
}

void fill(char* at, size_t bytes, unsigned seed) {
  std::vector<unsigned char> values(bytes);
  for (size_t i = 0; i < bytes; ++i) values[i] = static_cast<unsigned char>((i * 7 + seed) % 251);
  EXPECT_CUDA(cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(at), values.data(), bytes));
}

bool holds(const char* at, size_t bytes, unsigned seed, size_t skip = 0) {
  std::vector<unsigned char> values(bytes);
  EXPECT_CUDA(cuMemcpyDtoH_v2(values.data(), reinterpret_cast<CUdeviceptr>(at), bytes));
  for (size_t i = 0; i < bytes; ++i) {
    if (values[i] != static_cast<unsigned char>(((i + skip) * 7 + seed) % 251)) return false;
  }
  return true;
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_CUDA(cuMemGetInfo_v2(&free, &total));
  return free;
}

TEST_F(NcclReach, MappedMemoryIsReachedWhereverARangeOfItBegins) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({2});
        fill(memory.data(), memory.bytes(), 3);
        talk.tell(told_of(talk, memory.data()));
        talk.tell(told_of(talk, memory.data() + 1000001));
        talk.meet();
        EXPECT_TRUE(holds(memory.data(), 100, 9));
        EXPECT_TRUE(holds(memory.data() + 100, 1000, 3, 100));
      },
      [](Talk& talk) {
        const size_t descriptors = open_descriptors();
        const Told whole = talk.hear<Told>();
        const Told part = talk.hear<Told>();
        EXPECT_EQ(whole.range.bytes, 2 * kMappedUnit);
        EXPECT_EQ(whole.range.allocation, part.range.allocation);
        const Reached at = reach_all(talk, whole, 2 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 2 * kMappedUnit, 3));
        const Reached inside = reach_all(talk, part, 2 * kMappedUnit - 1000001);
        EXPECT_EQ(inside.address, at.address + 1000001) << inside.reason;
        const Reached beyond = reach_all(talk, part, 2 * kMappedUnit - 1000000);
        EXPECT_EQ(beyond.address, nullptr);
        EXPECT_NE(beyond.reason.find("beyond the end"), std::string::npos) << beyond.reason;
        fill(at.address, 100, 9);
        EXPECT_EQ(open_descriptors(), descriptors + 1 * kOfStandIn);
        talk.meet();
      });
}

TEST_F(NcclReach, ABufferMayGoOnOverAllocationsThatLieSideBySide) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1, 3, 1, 1});
        fill(memory.data(), memory.bytes(), 5);
        // From the first to the third, the second and the third, and what is not all mapped.
        talk.tell(told_of(talk, memory.data() + 4096, 4 * kMappedUnit, 1));
        talk.tell(told_of(talk, memory.data() + kMappedUnit, 4 * kMappedUnit, 2));
        talk.tell(told_of(talk, memory.data() + kMappedUnit, memory.bytes(), 3));
        talk.tell(told_of(talk, memory.data() + 4096, 0, 4));
        const MappedMemory many(std::vector<size_t>(kPiecesMax + 1, 1));
        talk.tell(told_of(talk, many.data(), kPiecesMax * kMappedUnit, 5));
        talk.tell(told_of(talk, many.data(), kPiecesMax * kMappedUnit + 1, 6));
        talk.meet();
      },
      [](Talk& talk) {
        const size_t descriptors = open_descriptors();
        Told told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, 5 * kMappedUnit);
        Reached at = reach_all(talk, told, 4 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4 * kMappedUnit, 5, 4096));
        told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, 4 * kMappedUnit);
        at = reach_all(talk, told, 4 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4 * kMappedUnit, 5, kMappedUnit));
        at = reach_all(talk, talk.hear<Told>(), 6 * kMappedUnit);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("only partly mapped"), std::string::npos) << at.reason;
        told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, kMappedUnit);
        at = reach_all(talk, told, 4 * kMappedUnit);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("beyond the end"), std::string::npos) << at.reason;
        at = reach_all(talk, talk.hear<Told>(), kPiecesMax * kMappedUnit);
        EXPECT_NE(at.address, nullptr) << at.reason;
        at = reach_all(talk, talk.hear<Told>(), kPiecesMax * kMappedUnit + 1);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("more than 64 allocations"), std::string::npos) << at.reason;
        EXPECT_EQ(open_descriptors(), descriptors + (3 + 2 + kPiecesMax) * kOfStandIn);
        talk.meet();
      });
}

TEST_F(NcclReach, MemoryThatIsMappedAnewAtAnAddressIsAnotherAndNothingStaysOfTheLast) {
  constexpr unsigned kRounds = 12;
  run_pair(
      [](Talk& talk) {
        MappedMemory memory({1, 1});
        const size_t free = free_bytes();
        const size_t descriptors = open_descriptors();
        for (unsigned round = 0; round < kRounds; ++round) {
          fill(memory.data(), memory.bytes(), round);
          talk.tell(told_of(talk, memory.data(), memory.bytes(), round + 1));
          talk.meet();
          talk.offers.clear();
          EXPECT_EQ(open_descriptors(), descriptors);
          EXPECT_EQ(free_bytes(), free);
          memory.renew();
        }
      },
      [](Talk& talk) {
        const size_t descriptors = open_descriptors();
        uint64_t address = 0;
        for (unsigned round = 0; round < kRounds; ++round) {
          const Told told = talk.hear<Told>();
          if (round > 0) {
            EXPECT_EQ(told.range.address, address);
          }
          address = told.range.address;
          const Reached at = reach_all(talk, told, 2 * kMappedUnit);
          ASSERT_NE(at.address, nullptr) << at.reason;
          EXPECT_TRUE(holds(at.address, 2 * kMappedUnit, round)) << round;
          EXPECT_EQ(open_descriptors(), descriptors + 2 * kOfStandIn);
          // Two users: the mapping ends with the second one.
          EXPECT_EQ(reach_all(talk, told, 100).address, at.address);
          leave(driver(), told.process, told.range);
          EXPECT_TRUE(holds(at.address, 2 * kMappedUnit, round)) << round;
          leave(driver(), told.process, told.range);
          EXPECT_EQ(open_descriptors(), descriptors);
          talk.meet();
        }
      });
}

TEST_F(NcclReach, WhatCannotBeExportedSaysWhy) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1}, 0, false);
        talk.tell(told_of(talk, memory.data()));
        CUdeviceptr pooled = 0;
        EXPECT_CUDA(cuMemAllocAsync(&pooled, 1000, nullptr));
        talk.tell(told_of(talk, reinterpret_cast<void*>(pooled)));
        EXPECT_CUDA(cuMemFreeAsync(pooled, nullptr));
        int on_stack = 0;
        talk.tell(told_of(talk, &on_stack));
      },
      [](Talk& talk) {
        for (const char* words : {"requestedHandleTypes", "memory pool", "cannot share"}) {
          const Reached at = reach_all(talk, talk.hear<Told>(), 4);
          EXPECT_EQ(at.address, nullptr);
          EXPECT_NE(at.reason.find(words), std::string::npos) << at.reason;
        }
      });
}

TEST_F(NcclReach, WhatCudaIpcTakesGoesByCudaIpc) {
  run_pair(
      [](Talk& talk) {
        CUdeviceptr memory = 0;
        EXPECT_CUDA(cuMemAlloc_v2(&memory, 5000));
        fill(reinterpret_cast<char*>(memory), 5000, 1);
        talk.tell(told_of(talk, reinterpret_cast<void*>(memory + 16), 4000));
        talk.meet();
      },
      [](Talk& talk) {
        const Told told = talk.hear<Told>();
        EXPECT_EQ(told.range.shared, kSharedByIpc);
        const Reached at = reach_all(talk, told, 4000);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4000, 1, 16));
        leave(driver(), told.process, told.range);
        EXPECT_NE(reach_all(talk, told, 4000).address, nullptr);
        talk.meet();
      });
}

TEST_F(NcclReach, WhatAPeerTellsWronglyIsRefusedAndNothingStaysOpen) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1, 1});
        talk.tell(told_of(talk, memory.data(), memory.bytes()));
        // A file of another kind under the key of the list.
        const int other = memfd_create("other", MFD_CLOEXEC);
        EXPECT_EQ(ftruncate(other, 32), 0);
        const Offers::Key key{5};
        Offers offers(talk.network.get());
        EXPECT_TRUE(offers.add(key, other).ok());
        talk.meet();
        talk.meet();
        EXPECT_EQ(close(other), 0);
      },
      [](Talk& talk) {
        const Told right = talk.hear<Told>();
        talk.meet();
        const size_t descriptors = open_descriptors();
        const auto refused = [&](const Told& told, const char* words) {
          const Reached at = reach_all(talk, told, 100);
          EXPECT_EQ(at.address, nullptr) << words;
          EXPECT_NE(at.reason.find(words), std::string::npos) << words << ": " << at.reason;
          EXPECT_EQ(open_descriptors(), descriptors) << words;
        };
        Told told = right;
        told.range.handle.reserved[3] ^= 1;
        refused(told, "has not passed a file descriptor");
        told = right;
        std::memset(told.range.handle.reserved, 0, 16);
        told.range.handle.reserved[0] = 5;
        refused(told, "sent is invalid");
        for (const uint32_t count : {0u, 1u, 3u, 65u, UINT32_MAX}) {
          told = right;
          told.range.piece_count = count;
          refused(told, "sent is invalid");
        }
        told = right;
        told.range.bytes += kMappedUnit;
        refused(told, "sent is invalid");
        told = right;
        told.range.address = told.range.base - 1;
        refused(told, "beyond the end");
        told = right;
        told.range.base = UINT64_MAX - 5;
        told.range.address = UINT64_MAX - 5;
        refused(told, "beyond the end");
        told = right;
        told.range.shared = 7;
        refused(told, "cannot share");
        EXPECT_NE(reach_all(talk, right, 2 * kMappedUnit).address, nullptr);
        EXPECT_EQ(open_descriptors(), descriptors + 2 * kOfStandIn);
        talk.meet();
      });
}

// What lets a process of root take descriptors of what is shielded; of no other effect.
void give_up_tracing() {
  __user_cap_header_struct head{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  EXPECT_EQ(syscall(SYS_capget, &head, data), 0);
  data[CAP_TO_INDEX(CAP_SYS_PTRACE)].effective &= ~CAP_TO_MASK(CAP_SYS_PTRACE);
  EXPECT_EQ(syscall(SYS_capset, &head, data), 0);
}

TEST_F(NcclReach, NoPrivilegeIsNeeded) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1});
        fill(memory.data(), memory.bytes(), 4);
        EXPECT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
        talk.tell(told_of(talk, memory.data()));
        talk.meet();
      },
      [](Talk& talk) {
        give_up_tracing();
        const Reached at = reach_all(talk, talk.hear<Told>(), kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, kMappedUnit, 4));
        talk.meet();
      });
}

TEST_F(NcclReach, AKernelReachesMappedMemoryOfAnotherDeviceThatTheProgramHasGivenToIt) {
  run_pair(
      [](Talk& talk) {
        int devices = 0;
        EXPECT_CUDA(cuDeviceGetCount(&devices));
        if (devices < 2) return;
        MappedMemory memory({1, 1}, 1);
        const Told told = told_of(talk, memory.data());
        const auto reached = [&](uint64_t bytes) {
          return reach_by_kernel(driver(), told.process, told.range, bytes, fetch_from_owner(talk));
        };
        const Reached refused = reached(100);
        EXPECT_EQ(refused.address, nullptr);
        EXPECT_NE(refused.reason.find("cuMemSetAccess"), std::string::npos) << refused.reason;
        const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        EXPECT_CUDA(cuMemSetAccess(memory.address(), kMappedUnit, &access, 1));
        EXPECT_EQ(reached(kMappedUnit).address, memory.data());
        EXPECT_EQ(reached(kMappedUnit + 1).address, nullptr);
        memory.give_to(0);
        EXPECT_EQ(reached(2 * kMappedUnit).address, memory.data());
      },
      [](Talk&) {});
}

}  // namespace
}  // namespace weir::comm::test
