// SPDX-License-Identifier: Apache-2.0
// Exported functions with any arguments at all. The answer is a result that NCCL has, with a text
// where it is a refusal; the process and the library go on.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "nccl/support.h"
#include "nccl/wrong_calls.h"
#include "weir/nccl_device.h"

namespace weir::nccl::test {
namespace {

// Random calls on a communicator of one rank, where whatever is right is done at once.
class AnyCalls {
 public:
  explicit AnyCalls(unsigned seed) : random_(seed) {
    std::memset(&config_, 0, sizeof config_);
    renew();
  }
  ~AnyCalls() { EXPECT_NCCL(ncclCommDestroy(comm_)); }
  AnyCalls(const AnyCalls&) = delete;
  AnyCalls& operator=(const AnyCalls&) = delete;

  // Checks that what came back is a result, and that a refusal has a text.
  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (i % 150 == 0) renew();
      const ncclResult_t result = one_call();
      ASSERT_GE(static_cast<int>(result), 0);
      ASSERT_LT(static_cast<int>(result), static_cast<int>(ncclNumResults));
      ASSERT_NE(result, ncclInProgress);
      ASSERT_NE(result, ncclInternalError) << ncclGetLastError(nullptr);
      if (result != ncclSuccess) {
        ASSERT_STRNE(ncclGetLastError(nullptr), "");
      }
    }
  }

 private:
  void renew() {
    EXPECT_NCCL(ncclCommDestroy(comm_));
    gone_ = comm_;
    comm_ = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm_, 1, make_id(), 0));
    window_ = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm_, memory_, sizeof memory_, &window_, 0));
  }

  template <typename Value>
  Value any_of(std::initializer_list<Value> values) {
    return values.begin()[random_() % values.size()];
  }
  bool rarely() { return random_() % 4 == 0; }

  void* any_pointer() {
    return any_of<void*>({nullptr, forbidden_.get(), reinterpret_cast<void*>(1), gone_});
  }
  ncclComm_t comm() { return rarely() ? static_cast<ncclComm_t>(any_pointer()) : comm_; }
  ncclWindow_t window() { return rarely() ? static_cast<ncclWindow_t>(any_pointer()) : window_; }
  // Memory is read and written: what is given is NULL or large enough for a small count.
  void* buffer() { return any_of<void*>({nullptr, memory_, memory_ + 64, memory_ + 68}); }
  size_t count() {
    return any_of<size_t>({0, 1, 2, 7, SIZE_MAX, SIZE_MAX / 8 + 1, size_t{PTRDIFF_MAX}});
  }
  int number() { return any_of({-1, 0, 0, 0, 1, 2, 5, 12, INT_MAX, INT_MIN}); }
  ncclDataType_t type() {
    return static_cast<ncclDataType_t>(static_cast<int>(random_() % 14) - 1);
  }
  ncclRedOp_t op() { return static_cast<ncclRedOp_t>(rarely() ? number() : random_() % 5); }
  ncclConfig_t* config() {
    const ncclConfig_t sound = NCCL_CONFIG_INITIALIZER;
    if (rarely()) return nullptr;
    config_ = sound;
    if (rarely()) config_.magic = static_cast<unsigned>(number());
    if (rarely()) config_.size = any_of<size_t>({0, 8, 23, 24, 50, sizeof config_});
    if (rarely()) config_.version = static_cast<unsigned>(number());
    int* fields = &config_.cgaClusterSize;
    if (rarely()) fields[random_() % 3] = number();
    if (rarely()) config_.numRmaSig = number();
    if (rarely()) config_.numRmaCtx = number();
    if (rarely()) config_.rmaEagerInit = number();
    return &config_;
  }
  const ncclCollConfig_t* call_config() {
    const ncclCollConfig_t sound = NCCL_COLLCONFIG_INITIALIZER;
    if (rarely()) return nullptr;
    call_config_ = sound;
    if (rarely()) call_config_.magic = 0;
    if (rarely()) call_config_.size = any_of<size_t>({0, 8, 24, sizeof call_config_});
    if (rarely()) call_config_.CTAPolicy = number();
    if (rarely()) call_config_.forceAlgSelection = number();
    return &call_config_;
  }
  ncclUniqueId id() {
    if (!rarely()) return make_id();
    ncclUniqueId any = make_id();
    for (int i = 0; i < 3; ++i) any.internal[random_() % sizeof any] = static_cast<char>(random_());
    return any;
  }
  // Makers: what is made is ended.
  ncclResult_t end(ncclResult_t result) {
    EXPECT_NCCL(ncclCommDestroy(made_)) << "NULL where none was made";
    made_ = nullptr;
    return result;
  }
  ncclComm_t* place() { return rarely() ? nullptr : &made_; }
  int ranks() { return any_of({1, 1, 0, -1, INT_MIN, 65537, INT_MAX}); }

  ncclResult_t maker() {
    int excluded[] = {number(), number()};
    ncclUniqueId ids[] = {id(), id()};
    switch (random_() % 7) {
      case 0:
        return end(ncclCommInitRank(place(), ranks(), ids[0], number()));
      case 1:
        return end(ncclCommInitRankConfig(place(), ranks(), ids[0], number(), config()));
      case 2:
        return end(ncclCommInitRankScalable(place(), ranks(), number(), any_of({-1, 0, 1, 1, 2}),
                                            rarely() ? nullptr : ids, config()));
      case 3:
        return end(ncclCommInitAll(place(), any_of({1, 0, -1, INT_MIN}), excluded));
      case 4:
        return end(ncclCommSplit(comm(), number(), number(), place(), config()));
      case 5:
        return end(ncclCommShrink(comm(), rarely() ? nullptr : excluded,
                                  any_of({0, 1, 2, -1, 1000, INT_MAX}), place(), config(),
                                  number()));
      default:
        // Where it is right it waits for the ranks that are new.
        return end(ncclCommGrow(comm(), any_of({0, -1, 1, INT_MIN, INT_MAX}),
                                rarely() ? nullptr : ids, number(), place(), config()));
    }
  }

  ncclResult_t operation() {
    void* a = buffer();
    void* b = buffer();
    const size_t n = count();
    switch (random_() % 4) {
      case 0: {
        const Operation& it = operations()[random_() % operations().size()];
        return it.call(a, b, n, type(), op(), number(), comm());
      }
      case 1:
        return ncclAllReduceConfig(a, b, n, type(), op(), comm(), nullptr, call_config());
      case 2:
        return ncclGatherConfig(a, b, n, type(), number(), comm(), nullptr, call_config());
      default: {
        ncclRedOp_t made = ncclSum;
        const ncclResult_t result =
            ncclRedOpCreatePreMulSum(rarely() ? nullptr : &made, a, type(),
                                     static_cast<ncclScalarResidence_t>(number()), comm());
        if (made != ncclSum) {
          EXPECT_NCCL(ncclRedOpDestroy(made, comm_));
        }
        return rarely() ? ncclRedOpDestroy(static_cast<ncclRedOp_t>(number()), comm()) : result;
      }
    }
  }

  ncclResult_t memory() {
    void* place_of_pointer = nullptr;
    void** out = rarely() ? nullptr : &place_of_pointer;
    switch (random_() % 7) {
      case 0: {
        const ncclResult_t result =
            ncclMemAlloc(out, any_of<size_t>({0, 1, 4097, SIZE_MAX, size_t{PTRDIFF_MAX}}));
        EXPECT_NCCL(ncclMemFree(place_of_pointer));
        return result;
      }
      case 1:
        return ncclMemFree(any_pointer());
      case 2:
        return ncclCommRegister(comm(), buffer(), count(), out);
      case 3:
        return ncclCommDeregister(comm(), any_pointer());
      case 4: {
        ncclWindow_t made = nullptr;
        const ncclResult_t result = ncclCommWindowRegister(
            comm(), buffer(), any_of<size_t>({0, 1, 64, SIZE_MAX, SIZE_MAX / 2 + 1}),
            rarely() ? nullptr : &made, number());
        EXPECT_NCCL(ncclCommWindowDeregister(comm_, made));
        return result;
      }
      case 5:
        return ncclCommWindowDeregister(comm(), static_cast<ncclWindow_t>(any_pointer()));
      default:
        return ncclWinGetUserPtr(comm(), window(), out);
    }
  }

  ncclResult_t one_sided() {
    switch (random_() % 3) {
      case 0:
        return ncclPutSignal(buffer(), count(), type(), number(), window(),
                             any_of<size_t>({0, 8, SIZE_MAX, SIZE_MAX - 7}), number(), number(),
                             static_cast<unsigned>(number()), comm(), nullptr);
      case 1:
        return ncclSignal(number(), number(), number(), static_cast<unsigned>(number()), comm(),
                          nullptr);
      default: {
        ncclWaitSignalDesc_t wanted{any_of({0, -1, INT_MIN}), number(), number(), number()};
        return ncclWaitSignal(any_of({0, 1, 1, -1, INT_MIN}), rarely() ? nullptr : &wanted, comm(),
                              nullptr);
      }
    }
  }

  ncclResult_t asked() {
    int value = 0;
    uint64_t wide = 0;
    ncclResult_t state = ncclSuccess;
    int* out = rarely() ? nullptr : &value;
    ncclCommProperties properties{};
    properties.size = any_of<size_t>({0, 1, sizeof properties});
    properties.magic = rarely() ? 0 : NCCL_API_MAGIC;
    switch (random_() % 11) {
      case 0:
        return ncclCommCount(comm(), out);
      case 1:
        return ncclCommUserRank(comm(), out);
      case 2:
        return ncclCommCuDevice(comm(), out);
      case 3:
        return ncclCommGetAsyncError(comm(), rarely() ? nullptr : &state);
      case 4:
        return ncclCommMemStats(comm(), static_cast<ncclCommMemStat_t>(number()),
                                rarely() ? nullptr : &wide);
      case 5:
        return ncclCommQueryProperties(comm(), rarely() ? nullptr : &properties);
      case 6:
        return ncclGetVersion(out);
      case 7:
        return ncclGetErrorString(static_cast<ncclResult_t>(number())) != nullptr &&
                       ncclGetLastError(comm()) != nullptr
                   ? ncclSuccess
                   : ncclInternalError;
      case 8:
        (void)ncclTeamRankToWorld(comm(), {number(), number(), number()}, number());
        (void)ncclTeamRankToLsa(comm(), {number(), number(), number()}, number());
        (void)ncclTeamCft(comm(), static_cast<ncclCftTeamMode_t>(number()));
        (void)ncclLLA2ACalcSlots(number(), number());
        return ncclDevCommCreate(comm(), nullptr, nullptr);
      case 9:
        return ncclGetPeerDevicePointer(window(), count(), number(), nullptr);
      default:
        return changed();
    }
  }

  ncclResult_t changed() {
    switch (random_() % 4) {
      case 0:
        return ncclCommSuspend(comm(), number());
      case 1:
        return ncclCommResume(comm());
      case 2:
        return ncclCommRevoke(comm(), number());
      default:
        return ncclCommFinalize(comm());
    }
  }

  ncclResult_t parameter() {
    ncclParamHandle_t handle = nullptr;
    const char* key = any_of<const char*>({nullptr, "", "NCCL_DEBUG", "NCCL_BUFFSIZE", "PATH"});
    const ncclResult_t bound = ncclParamBind(rarely() ? nullptr : &handle, key);
    if (rarely()) handle = static_cast<ncclParamHandle_t>(any_pointer());
    int64_t value = 0;
    uint8_t small = 0;
    char bytes[8];
    int length = 0;
    const char* text = nullptr;
    switch (random_() % 5) {
      case 0:
        return ncclParamGetI64(handle, rarely() ? nullptr : &value);
      case 1:
        return ncclParamGetU8(handle, rarely() ? nullptr : &small);
      case 2:
        return ncclParamGet(handle, rarely() ? nullptr : bytes, any_of({-1, 0, 8, INT_MIN}),
                            rarely() ? nullptr : &length);
      case 3:
        return ncclParamGetParameter(key, rarely() ? nullptr : &text, rarely() ? nullptr : &length);
      default:
        return bound;
    }
  }

  ncclResult_t group() {
    if (rarely()) return ncclGroupEnd();  // there is none
    EXPECT_NCCL(ncclGroupStart());
    for (int i = 0; i < 3; ++i) {
      // Without messages: one that nobody takes would wait.
      (void)ncclAllReduce(buffer(), buffer(), count(), type(), op(), comm(), nullptr);
      (void)one_sided();
    }
    ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
    if (rarely()) info.magic = 0;
    if (rarely() && ncclGroupSimulateEnd(&info) == ncclSuccess) return ncclSuccess;
    return ncclGroupEnd();
  }

  ncclResult_t one_call() {
    switch (random_() % 12) {
      case 0:
        return maker();
      case 1:
      case 2:
      case 3:
        return operation();
      case 4:
      case 5:
        return memory();
      case 6:
      case 7:
        return one_sided();
      case 8:
      case 9:
        return asked();
      case 10:
        return parameter();
      default:
        return group();
    }
  }

  std::mt19937 random_;
  const Forbidden forbidden_;
  alignas(64) char memory_[1024] = {};
  ncclConfig_t config_;
  ncclCollConfig_t call_config_{};
  ncclComm_t comm_ = nullptr;
  ncclComm_t gone_ = nullptr;
  ncclComm_t made_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

TEST(NcclBadUse, AnyArgumentsGiveAResultWithATextAndTheProcessGoesOn) {
  const char* given = std::getenv("WEIR_TEST_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  {
    AnyCalls calls(seed);
    calls.run(3000);
  }
  const AllRanks ranks(2);
  EXPECT_TRUE(sums_up(ranks)) << "the library works as before";
}

}  // namespace
}  // namespace weir::nccl::test
