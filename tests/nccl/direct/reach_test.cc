// SPDX-License-Identifier: Apache-2.0
// How a process comes to another's memory that is made by mapping, on Weir's stand-in for CUDA.
// Each test is a process that reaches and a child of its own that owns; nothing here uses CUDA
// before it forks.
#include "core/comm/stream/reach.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "core/comm/stream/exports.h"
#include "cuda/driver.h"
#include "nccl/direct/mapped_memory.h"

namespace weir::comm::test {
namespace {

using nccl::test::descriptors_can_be_taken;
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
      owns(talk);
      talk.meet();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(to_owner[0]);
    close(to_other[1]);
    use_device(0);
    Talk talk(to_other[0], to_owner[1]);
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
  void SetUp() override {
    ASSERT_TRUE(kEnvironment);
    if (!descriptors_can_be_taken()) {
      GTEST_SKIP() << "this machine does not let a process take another's descriptors";
    }
  }
};

Told told_of(const void* memory, uint64_t bytes = 0) {
  return {this_process(), range_of(driver(), memory, true, bytes)};
}

Reached reach_all(const Told& told, uint64_t bytes) {
  return reach(driver(), told.process, told.range, bytes);
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
        talk.tell(told_of(memory.data()));
        talk.tell(told_of(memory.data() + 1000001));
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
        const Reached at = reach_all(whole, 2 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 2 * kMappedUnit, 3));
        const Reached inside = reach_all(part, 2 * kMappedUnit - 1000001);
        EXPECT_EQ(inside.address, at.address + 1000001) << inside.reason;
        const Reached beyond = reach_all(part, 2 * kMappedUnit - 1000000);
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
        talk.tell(told_of(memory.data() + 4096, 4 * kMappedUnit));
        talk.tell(told_of(memory.data() + kMappedUnit, 4 * kMappedUnit));
        talk.tell(told_of(memory.data() + kMappedUnit, memory.bytes()));
        talk.tell(told_of(memory.data() + 4096));
        const MappedMemory many(std::vector<size_t>(kPiecesMax + 1, 1));
        talk.tell(told_of(many.data(), kPiecesMax * kMappedUnit));
        talk.tell(told_of(many.data(), kPiecesMax * kMappedUnit + 1));
        talk.meet();
      },
      [](Talk& talk) {
        const size_t descriptors = open_descriptors();
        Told told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, 5 * kMappedUnit);
        Reached at = reach_all(told, 4 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4 * kMappedUnit, 5, 4096));
        told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, 4 * kMappedUnit);
        at = reach_all(told, 4 * kMappedUnit);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4 * kMappedUnit, 5, kMappedUnit));
        at = reach_all(talk.hear<Told>(), 6 * kMappedUnit);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("only partly mapped"), std::string::npos) << at.reason;
        told = talk.hear<Told>();
        EXPECT_EQ(told.range.bytes, kMappedUnit);
        at = reach_all(told, 4 * kMappedUnit);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("beyond the end"), std::string::npos) << at.reason;
        at = reach_all(talk.hear<Told>(), kPiecesMax * kMappedUnit);
        EXPECT_NE(at.address, nullptr) << at.reason;
        at = reach_all(talk.hear<Told>(), kPiecesMax * kMappedUnit + 1);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("more than 64 allocations"), std::string::npos) << at.reason;
        EXPECT_EQ(open_descriptors(), descriptors + (3 + 2 + kPiecesMax) * kOfStandIn);
        talk.meet();
      });
}

TEST_F(NcclReach, MemoryThatIsMappedAnewAtAnAddressIsAnother) {
  constexpr unsigned kRounds = 12;
  run_pair(
      [](Talk& talk) {
        MappedMemory memory({1, 1});
        const size_t free = free_bytes();
        size_t descriptors = 0;
        for (unsigned round = 0; round < kRounds; ++round) {
          fill(memory.data(), memory.bytes(), round);
          talk.tell(told_of(memory.data(), memory.bytes()));
          talk.meet();
          // Of this round's memory and of the last round's, which nothing here maps any more.
          if (round == 1) descriptors = open_descriptors();
          if (round > 1) {
            EXPECT_EQ(open_descriptors(), descriptors);
          }
          EXPECT_GE(free_bytes() + memory.bytes(), free);
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
          const Reached at = reach_all(told, 2 * kMappedUnit);
          ASSERT_NE(at.address, nullptr) << at.reason;
          EXPECT_TRUE(holds(at.address, 2 * kMappedUnit, round)) << round;
          EXPECT_EQ(open_descriptors(), descriptors + (round + 1) * 2 * kOfStandIn);
          talk.meet();
        }
      });
}

TEST_F(NcclReach, AnOwnerSharesNoMoreWhenItHasUnmappedTooMuchOfWhatItShared) {
  run_pair(
      [](Talk& talk) {
        MappedMemory memory({kLetGoBytesMax / kMappedUnit / 2});
        for (int round = 0; round < 3; ++round) {
          talk.tell(told_of(memory.data()));
          memory.renew();
        }
        talk.tell(told_of(memory.data()));
        const MappedMemory one({1});
        talk.tell(told_of(one.data()));
      },
      [](Talk& talk) {
        for (int round = 0; round < 3; ++round) {
          EXPECT_EQ(talk.hear<Told>().range.shared, kSharedByExport) << round;
        }
        for (int round = 0; round < 2; ++round) {
          const Reached at = reach_all(talk.hear<Told>(), kMappedUnit);
          EXPECT_EQ(at.address, nullptr);
          EXPECT_NE(at.reason.find("has unmapped 1024 MiB"), std::string::npos) << at.reason;
        }
      });
}

TEST_F(NcclReach, WhatCannotBeExportedSaysWhy) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1}, 0, false);
        talk.tell(told_of(memory.data()));
        CUdeviceptr pooled = 0;
        EXPECT_CUDA(cuMemAllocAsync(&pooled, 1000, nullptr));
        talk.tell(told_of(reinterpret_cast<void*>(pooled)));
        EXPECT_CUDA(cuMemFreeAsync(pooled, nullptr));
        int on_stack = 0;
        talk.tell(told_of(&on_stack));
      },
      [](Talk& talk) {
        for (const char* words : {"requestedHandleTypes", "memory pool", "cannot share"}) {
          const Reached at = reach_all(talk.hear<Told>(), 4);
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
        talk.tell(told_of(reinterpret_cast<void*>(memory + 16), 4000));
        talk.meet();
      },
      [](Talk& talk) {
        const Told told = talk.hear<Told>();
        EXPECT_EQ(told.range.shared, kSharedByIpc);
        const Reached at = reach_all(told, 4000);
        ASSERT_NE(at.address, nullptr) << at.reason;
        EXPECT_TRUE(holds(at.address, 4000, 1, 16));
        talk.meet();
      });
}

TEST_F(NcclReach, WhatAPeerTellsWronglyIsRefusedAndNothingStaysOpen) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1, 1});
        talk.tell(told_of(memory.data(), memory.bytes()));
        talk.tell(told_of(memory.data()));
        talk.meet();
      },
      [](Talk& talk) {
        const Told right = talk.hear<Told>();
        const Told other = talk.hear<Told>();
        const size_t descriptors = open_descriptors();
        const auto refused = [&](const Told& told, const char* words) {
          const Reached at = reach_all(told, 100);
          EXPECT_EQ(at.address, nullptr) << words;
          EXPECT_NE(at.reason.find(words), std::string::npos) << words << ": " << at.reason;
          EXPECT_EQ(open_descriptors(), descriptors) << words;
        };
        const auto with_key = [&](const std::function<void(ExportKey&)>& change) {
          Told told = right;
          ExportKey key;
          std::memcpy(static_cast<void*>(&key), told.range.handle.reserved, sizeof key);
          change(key);
          std::memcpy(told.range.handle.reserved, &key, sizeof key);
          return told;
        };
        ExportKey key;
        std::memcpy(static_cast<void*>(&key), right.range.handle.reserved, sizeof key);
        // Processes: none, this one, one that is no owner, one that has ended.
        refused(with_key([](ExportKey& it) { it.process = 0; }), "sent is invalid");
        refused(with_key([](ExportKey& it) { it.process = -5; }), "sent is invalid");
        refused(with_key([](ExportKey& it) { it.process = getpid(); }), "process");
        const pid_t idle = fork();
        if (idle == 0) {
          prctl(PR_SET_PDEATHSIG, SIGKILL);
          for (;;) pause();
        }
        refused(with_key([&](ExportKey& it) { it.process = idle; }), "see each other");
        EXPECT_EQ(kill(idle, SIGKILL), 0);
        EXPECT_EQ(waitpid(idle, nullptr, 0), idle);
        refused(with_key([&](ExportKey& it) { it.process = idle; }), "see each other");
        // Descriptors: none, one that is not open, files that are no book, and a piece of the
        // memory.
        refused(with_key([](ExportKey& it) { it.book = -1; }), "sent is invalid");
        refused(with_key([](ExportKey& it) { it.book = 1 << 20; }), "see each other");
        for (int number = 0; number < key.book + 4; ++number) {
          if (number == key.book) continue;
          refused(with_key([&](ExportKey& it) { it.book = number; }), "process");
        }
        // Records.
        refused(with_key([](ExportKey& it) { it.record = kExportsMax; }), "sent is invalid");
        refused(with_key([](ExportKey& it) { it.record = 77; }), "unmapped it since");
        refused(with_key([](ExportKey& it) { it.record ^= 1; }), "unmapped it since");
        // The owner, and what the book says.
        Told told = right;
        told.process[3] = static_cast<unsigned char>(told.process[3] ^ 1);
        refused(told, "is a different process here");
        told = right;
        ++told.range.allocation;
        refused(told, "unmapped it since");
        told = right;
        told.range.bytes += kMappedUnit;
        refused(told, "unmapped it since");
        told = right;
        told.range.allocation = 0;
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
        EXPECT_NE(reach_all(right, 2 * kMappedUnit).address, nullptr);
        EXPECT_NE(reach_all(other, kMappedUnit).address, nullptr);
        EXPECT_EQ(open_descriptors(), descriptors + (2 + 1) * kOfStandIn);
        talk.meet();
      });
}

TEST_F(NcclReach, WhatIsUnmappedBeforeItIsFetchedIsRefused) {
  run_pair(
      [](Talk& talk) {
        MappedMemory memory({1});
        talk.tell(told_of(memory.data()));
        memory.renew();
        const Told later = told_of(memory.data());
        talk.tell(later);
        talk.meet();
      },
      [](Talk& talk) {
        const size_t descriptors = open_descriptors();
        const Told gone = talk.hear<Told>();
        const Told later = talk.hear<Told>();
        const Reached at = reach_all(gone, 100);
        EXPECT_EQ(at.address, nullptr);
        EXPECT_NE(at.reason.find("unmapped it since"), std::string::npos) << at.reason;
        EXPECT_NE(reach_all(later, 100).address, nullptr);
        EXPECT_EQ(open_descriptors(), descriptors + 1 * kOfStandIn);
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

TEST_F(NcclReach, AProcessThatTheKernelShieldsIsNotReachedAndTheReasonSaysWhatHelps) {
  run_pair(
      [](Talk& talk) {
        const MappedMemory memory({1});
        EXPECT_EQ(prctl(PR_SET_DUMPABLE, 0), 0);
        talk.tell(told_of(memory.data()));
        talk.meet();
        EXPECT_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
        talk.meet();
        talk.meet();
      },
      [](Talk& talk) {
        give_up_tracing();
        const Told told = talk.hear<Told>();
        const size_t descriptors = open_descriptors();
        const Reached refused = reach_all(told, 100);
        EXPECT_EQ(refused.address, nullptr);
        EXPECT_NE(refused.reason.find("refuses a descriptor"), std::string::npos) << refused.reason;
        EXPECT_NE(refused.reason.find("SYS_PTRACE"), std::string::npos) << refused.reason;
        EXPECT_EQ(open_descriptors(), descriptors);
        talk.meet();
        talk.meet();
        const Reached at = reach_all(told, 100);
        EXPECT_NE(at.address, nullptr) << at.reason;
        talk.meet();
      });
}

TEST_F(NcclReach, AKernelReachesMappedMemoryOfAnotherDeviceThatTheProgramHasGivenToIt) {
  run_pair(
      [](Talk&) {
        MappedMemory memory({1, 1}, 1);
        const Told told = told_of(memory.data());
        const auto reached = [&](uint64_t bytes) {
          return reach_by_kernel(driver(), told.process, told.range, bytes);
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
