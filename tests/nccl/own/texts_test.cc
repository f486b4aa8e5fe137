// SPDX-License-Identifier: Apache-2.0
// ncclGetLastError speaks of the caller's NCCL call: its text begins with the function and the
// rank, and calls of peers have NCCL's names, types and reductions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/processes.h"

namespace weir::nccl::test {
namespace {

constexpr unsigned kAfterDeadlineUs = 1'000'000;

struct Case {
  const char* function;
  const char* described;
  std::function<ncclResult_t(const void* send, void* recv, ncclComm_t comm)> call;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"ncclAllReduce", "ncclAllReduce(ncclInt32, ncclSum, count 7)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclAllReduce(send, recv, 7, ncclInt, ncclSum, comm, nullptr);
       }},
      {"ncclReduce", "ncclReduce(ncclFloat64, ncclMax, count 7, root 0)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclReduce(send, recv, 7, ncclDouble, ncclMax, 0, comm, nullptr);
       }},
      {"ncclReduceScatter", "ncclReduceScatter(ncclFloat16, ncclAvg, count 7)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclReduceScatter(send, recv, 7, ncclHalf, ncclAvg, comm, nullptr);
       }},
      {"ncclAllGather", "ncclAllGather(ncclBfloat16, count 7)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclAllGather(send, recv, 7, ncclBfloat16, comm, nullptr);
       }},
      {"ncclBroadcast", "ncclBroadcast(ncclUint64, count 7, root 1)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclBroadcast(send, recv, 7, ncclUint64, 1, comm, nullptr);
       }},
      {"ncclAlltoAll", "ncclAlltoAll(ncclInt8, count 7)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclAlltoAll(send, recv, 7, ncclInt8, comm, nullptr);
       }},
      {"ncclGather", "ncclGather(ncclFloat8e4m3, count 7, root 0)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclGather(send, recv, 7, ncclFloat8e4m3, 0, comm, nullptr);
       }},
      {"ncclScatter", "ncclScatter(ncclUint32, count 7, root 1)",
       [](const void* send, void* recv, ncclComm_t comm) {
         return ncclScatter(send, recv, 7, ncclUint32, 1, comm, nullptr);
       }},
      {"ncclSend", "ncclSend of 4194304 bytes to rank 1",
       [](const void* send, void*, ncclComm_t comm) {
         return ncclSend(send, 1 << 20, ncclInt, 1, comm, nullptr);
       }},
      {"ncclRecv", "ncclRecv of 28 bytes from rank 1",
       [](const void*, void* recv, ncclComm_t comm) {
         return ncclRecv(recv, 7, ncclInt, 1, comm, nullptr);
       }},
  };
  return all;
}

void expect_words_of_nccl(const std::string& text) {
  for (const char* ours : {"weir_", "all_reduce", "reduce_scatter", "all_gather", "broadcast(",
                           " reduce(", "all_to_all", " gather(", "scatter(", "(uint8", "(int32"}) {
    EXPECT_EQ(text.find(ours), std::string::npos) << ours << " is in: " << text;
  }
}

void expect_text(const std::string& text, const Case& it, const std::vector<std::string>& words) {
  EXPECT_TRUE(text.starts_with(std::string(it.function) + ", rank 0 of 2")) << text;
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
  expect_words_of_nccl(text);
}

// Each case has a communicator of its own, on which rank 0 makes the call after an all-gather of
// both, and rank 1 does `peer` and stays for `linger_us`.
void run_cases(unsigned linger_us, const std::function<void(ncclComm_t comm)>& peer,
               const std::function<void(const Case& it, const std::string& text)>& check) {
  const std::vector<int> statuses = run_processes(
      2,
      [&](int rank, ncclComm_t parent) {
        std::vector<ncclComm_t> comms(cases().size());
        for (ncclComm_t& comm : comms) {
          ASSERT_NCCL(ncclCommSplit(parent, 0, rank, &comm, nullptr));
          std::vector<char> bytes(96);
          ASSERT_NCCL(
              ncclAllGather(bytes.data() + 48 * rank, bytes.data(), 48, ncclUint8, comm, nullptr));
        }
        std::vector<std::thread> threads;
        for (size_t i = 0; rank == 0 && i < cases().size(); ++i) {
          threads.emplace_back([&, i] {
            const Case& it = cases()[i];
            std::vector<char> send(4 << 20);
            std::vector<char> recv(1000);
            EXPECT_EQ(it.call(send.data(), recv.data(), comms[i]), ncclRemoteError) << it.function;
            check(it, ncclGetLastError(comms[i]));
          });
        }
        for (size_t i = 0; rank == 1 && i < comms.size(); ++i) peer(comms[i]);
        for (std::thread& it : threads) it.join();
        if (rank == 1) usleep(linger_us);
      },
      [](int) { setenv("WEIR_TIMEOUT_MS", "500", 1); });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

TEST(NcclTexts, OfADeadlineNameTheCallsOfBothRanks) {
  run_cases(
      kAfterDeadlineUs, [](ncclComm_t) {},
      [](const Case& it, const std::string& text) {
        const bool message = std::string(it.described).find(" of ") != std::string::npos;
        std::vector<std::string> words = {it.described, "did not finish within 500 ms"};
        if (!message) words.push_back("ncclAllGather(ncclUint8, count 48)");
        expect_text(text, it, words);
      });
}

TEST(NcclTexts, OfAnAbortSayWhatThePeerCalled) {
  run_cases(
      300'000, [](ncclComm_t comm) { EXPECT_NCCL(ncclCommAbort(comm)); },
      [](const Case& it, const std::string& text) {
        expect_text(text, it, {"rank 1 called ncclCommAbort"});
      });
}

TEST(NcclTexts, OfARevocationSayWhatThePeerCalled) {
  run_cases(
      300'000, [](ncclComm_t comm) { EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT)); },
      [](const Case& it, const std::string& text) {
        expect_text(text, it, {"rank 1 called ncclCommRevoke"});
      });
}

TEST(NcclTexts, OfAPeerThatHasCalledNothingSpeakOfNoExchangeOfTheLibrary) {
  const std::vector<int> statuses = run_processes(
      2,
      [](int rank, ncclComm_t comm) {
        if (rank == 1) {
          usleep(kAfterDeadlineUs);
          return;
        }
        int value = 1;
        EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr),
                  ncclRemoteError);
        expect_error_with({"an exchange that makes or changes a communicator"});
        expect_words_of_nccl(ncclGetLastError(nullptr));
      },
      [](int) { setenv("WEIR_TIMEOUT_MS", "500", 1); });
  EXPECT_EQ(statuses, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace weir::nccl::test
