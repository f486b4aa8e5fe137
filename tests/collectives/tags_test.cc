// SPDX-License-Identifier: Apache-2.0
// Messages with tags (weir_tag_send, weir_tag_recv), over whatever transport the environment names.
// WEIR_TEST_SEED is the first seed of the random programs, WEIR_TEST_ROUNDS how many; with
// WEIR_TEST_HOSTS=2 the processes of these are those of two hosts, in turns.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

// Around the limits of what fits a header and of what is sent at once.
constexpr std::array<size_t, 10> kSizes = {0, 1, 8, 216, 217, 5000, 16384, 16385, 100'000, 1 << 20};

using Bytes = std::vector<unsigned char>;

// What rank `source` sends as its message `number`.
Bytes content(int source, int number, size_t bytes) {
  Bytes data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(source * 31 + number * 7 + static_cast<int>(i / 253 + i));
  }
  return data;
}

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

weir_result_t send(weir_comm_t comm, const Bytes& data, int peer, int tag,
                   weir_request_t* request = nullptr) {
  return weir_tag_send(comm, data.data(), data.size(), WEIR_UINT8, peer, tag, request);
}

weir_result_t recv(weir_comm_t comm, Bytes* data, int source, int tag,
                   weir_tag_info_t* info = nullptr, weir_request_t* request = nullptr) {
  return weir_tag_recv(comm, data->data(), data->size(), WEIR_UINT8, source, tag, info, request);
}

void expect_text(weir_comm_t comm, const std::string& part) {
  const std::string text = weir_last_error(comm);
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

int size_of(weir_comm_t comm) {
  int n = 0;
  EXPECT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  return n;
}

// Sends that are under way, and their data.
class Sends {
 public:
  void add(weir_comm_t comm, Bytes data, int peer, int tag) {
    data_.push_back(std::make_unique<Bytes>(std::move(data)));
    requests_.push_back(nullptr);
    ASSERT_EQ(send(comm, *data_.back(), peer, tag, &requests_.back()), WEIR_OK)
        << weir_last_error(comm);
  }
  void wait(weir_comm_t comm) {
    EXPECT_EQ(weir_wait_all(requests_.data(), requests_.size()), WEIR_OK) << weir_last_error(comm);
    requests_.clear();
    data_.clear();
  }

 private:
  std::vector<std::unique_ptr<Bytes>> data_;
  std::vector<weir_request_t> requests_;
};

// ---- Matching -----------------------------------------------------------------------------------

TEST(Tags, AReceiveTakesTheMessageOfItsTagWhateverWasSentBefore) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    for (int round = 0; round < 3; ++round) {
      if (rank == 0) {
        Sends sends;
        for (size_t i = 0; i < kSizes.size(); ++i) {
          const int tag = static_cast<int>(i);
          sends.add(comm, content(0, tag + round, kSizes[i]), 1, tag);
        }
        sends.wait(comm);
        continue;
      }
      for (size_t i = kSizes.size(); i-- > 0;) {
        const int tag = static_cast<int>(i);
        Bytes data(kSizes[i] + 3, 0xee);
        weir_tag_info_t info = {};
        ASSERT_EQ(recv(comm, &data, 0, tag, &info), WEIR_OK) << weir_last_error(comm);
        EXPECT_EQ(info.source, 0);
        EXPECT_EQ(info.tag, tag);
        ASSERT_EQ(info.bytes, kSizes[i]);
        Bytes expected = content(0, tag + round, kSizes[i]);
        expected.resize(kSizes[i] + 3, 0xee);  // what lies behind stays
        EXPECT_TRUE(data == expected) << kSizes[i] << " bytes";
      }
    }
  });
}

// The same with receives that are posted before anything is sent.
TEST(Tags, PostedReceivesAreTakenInTheOrderOfTheCalls) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    for (const size_t bytes : kSizes) {
      SCOPED_TRACE(std::to_string(bytes) + " bytes");
      constexpr int kCount = 6;
      if (rank == 1) {
        // Those of tag 5 and of any tag, from rank 0 and from any rank, in turns.
        std::array<Bytes, kCount> data;
        std::array<weir_tag_info_t, kCount> infos{};
        std::array<weir_request_t, kCount> requests{};
        for (int i = 0; i < kCount; ++i) {
          const auto at = static_cast<size_t>(i);
          data[at].assign(bytes, 0);
          ASSERT_EQ(recv(comm, &data[at], i % 2 == 0 ? 0 : WEIR_ANY_SOURCE,
                         i % 3 == 0 ? 5 : WEIR_ANY_TAG, &infos[at], &requests[at]),
                    WEIR_OK);
        }
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
        EXPECT_EQ(weir_wait_all(requests.data(), requests.size()), WEIR_OK)
            << weir_last_error(comm);
        // Tags 9, 5, 9, 5, 9, 9: the receives of tag 5 are the first and the fourth.
        const std::array<int, kCount> number = {1, 0, 2, 3, 4, 5};
        for (int i = 0; i < kCount; ++i) {
          const auto at = static_cast<size_t>(i);
          EXPECT_EQ(infos[at].tag, i % 3 == 0 ? 5 : 9) << i;
          EXPECT_EQ(infos[at].bytes, bytes);
          EXPECT_TRUE(data[at] == content(0, number[at], bytes)) << "receive " << i;
        }
      } else {
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
        Sends sends;
        for (int i = 0; i < kCount; ++i) {
          sends.add(comm, content(0, i, bytes), 1, i == 1 || i == 3 ? 5 : 9);
        }
        sends.wait(comm);
      }
    }
  });
}

TEST(Tags, AReceiveFromAnySourceTellsTheSourceAndKeepsTheOrderOfEach) {
  const auto body = [](int rank, weir_comm_t comm) {
    const int n = size_of(comm);
    constexpr int kCount = 40;
    if (rank != 0) {
      for (int i = 0; i < kCount; ++i) {
        const size_t bytes = kSizes[static_cast<size_t>(i + rank) % kSizes.size()];
        ASSERT_EQ(send(comm, content(rank, i, bytes), 0, i % 4), WEIR_OK) << weir_last_error(comm);
      }
      return;
    }
    std::vector<int> next(static_cast<size_t>(n), 0);
    for (int k = 0; k < kCount * (n - 1); ++k) {
      Bytes data(1 << 20);
      weir_tag_info_t info = {};
      ASSERT_EQ(recv(comm, &data, WEIR_ANY_SOURCE, WEIR_ANY_TAG, &info), WEIR_OK)
          << weir_last_error(comm);
      ASSERT_GT(info.source, 0);
      ASSERT_LT(info.source, n);
      const int i = next[static_cast<size_t>(info.source)]++;
      EXPECT_EQ(info.tag, i % 4);
      ASSERT_EQ(info.bytes, kSizes[static_cast<size_t>(i + info.source) % kSizes.size()]);
      data.resize(info.bytes);
      EXPECT_TRUE(data == content(info.source, i, info.bytes)) << info.source << " " << i;
    }
  };
  run_processes(4, body);
  run_threads(3, body);
}

TEST(Tags, MessagesToOneselfAreMatchedAlike) {
  for (const int n : {1, 2}) {
    run_processes(n, [](int rank, weir_comm_t comm) {
      for (const size_t bytes : kSizes) {
        SCOPED_TRACE(std::to_string(bytes) + " bytes");
        const Bytes first = content(rank, 1, bytes);
        const Bytes second = content(rank, 2, bytes);
        Bytes got(bytes);
        weir_tag_info_t info = {};
        weir_request_t request = nullptr;
        weir_request_t other = nullptr;
        // Sent first.
        ASSERT_EQ(send(comm, first, rank, 1, &request), WEIR_OK);
        ASSERT_EQ(send(comm, second, rank, 2, &other), WEIR_OK);
        ASSERT_EQ(recv(comm, &got, WEIR_ANY_SOURCE, 2, &info), WEIR_OK) << weir_last_error(comm);
        EXPECT_TRUE(got == second);
        EXPECT_EQ(info.source, rank);
        ASSERT_EQ(recv(comm, &got, rank, WEIR_ANY_TAG, &info), WEIR_OK);
        EXPECT_TRUE(got == first);
        EXPECT_EQ(info.tag, 1);
        EXPECT_EQ(weir_wait(&request), WEIR_OK);
        EXPECT_EQ(weir_wait(&other), WEIR_OK);
        // Posted first.
        std::fill(got.begin(), got.end(), static_cast<unsigned char>(0));
        ASSERT_EQ(recv(comm, &got, rank, 7, &info, &request), WEIR_OK);
        ASSERT_EQ(send(comm, first, rank, 7), WEIR_OK) << weir_last_error(comm);
        EXPECT_EQ(weir_wait(&request), WEIR_OK);
        EXPECT_TRUE(got == first);
      }
      const Bytes large = content(rank, 1, 20'000);
      EXPECT_EQ(send(comm, large, rank, 1), WEIR_ERROR_INVALID_USAGE);
      expect_text(comm, "to oneself");
      EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
    });
  }
}

TEST(Tags, AGroupStartsSendsAndReceivesTogether) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    const int n = size_of(comm);
    const size_t bytes = 300'000;
    const Bytes mine = content(rank, 0, bytes);
    std::vector<Bytes> got(static_cast<size_t>(n), Bytes(bytes));
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    for (int peer = 0; peer < n; ++peer) {
      ASSERT_EQ(send(comm, mine, peer, 3), WEIR_OK);
      ASSERT_EQ(recv(comm, &got[static_cast<size_t>(peer)], peer, 3), WEIR_OK);
    }
    ASSERT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(comm);
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_TRUE(got[static_cast<size_t>(peer)] == content(peer, 0, bytes));
    }
  });
}

// ---- Beside other operations --------------------------------------------------------------------

TEST(Tags, TheyDoNotMeetMessagesWithoutTagsNorCollectives) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    const int peer = 1 - rank;
    for (const size_t bytes : kSizes) {
      const Bytes tagged = content(rank, 1, bytes);
      const Bytes plain = content(rank, 2, bytes);
      Bytes got_tagged(bytes);
      Bytes got_plain(bytes);
      std::array<weir_request_t, 4> requests{};
      ASSERT_EQ(send(comm, tagged, peer, 0, &requests[0]), WEIR_OK);
      ASSERT_EQ(weir_send(comm, plain.data(), bytes, WEIR_UINT8, peer, &requests[1]), WEIR_OK);
      check_every_collective(comm, 500);
      ASSERT_EQ(weir_recv(comm, got_plain.data(), bytes, WEIR_UINT8, peer, &requests[2]), WEIR_OK);
      ASSERT_EQ(recv(comm, &got_tagged, peer, 0, nullptr, &requests[3]), WEIR_OK);
      EXPECT_EQ(weir_wait_all(requests.data(), requests.size()), WEIR_OK) << weir_last_error(comm);
      EXPECT_TRUE(got_tagged == content(peer, 1, bytes)) << bytes;
      EXPECT_TRUE(got_plain == content(peer, 2, bytes)) << bytes;
    }
  });
}

TEST(Tags, ThreadsOfARankReceiveByTag) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([=] {
        for (int i = 0; i < 30; ++i) {
          const size_t bytes = kSizes[static_cast<size_t>(i) % kSizes.size()];
          if (rank == 0) {
            EXPECT_EQ(send(comm, content(tag, i, bytes), 1, tag), WEIR_OK) << weir_last_error(comm);
          } else {
            Bytes got(bytes);
            EXPECT_EQ(recv(comm, &got, i % 2 == 0 ? 0 : WEIR_ANY_SOURCE, tag), WEIR_OK)
                << weir_last_error(comm);
            EXPECT_TRUE(got == content(tag, i, bytes)) << tag << " " << i;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// What has no receive takes at most 64 KiB at the receiver; the rest waits at the sender.
TEST(Tags, AFloodWithoutReceivesWaitsAtTheSender) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    constexpr int kCount = 3000;
    constexpr size_t kBytes = 200;
    if (rank == 0) {
      Sends sends;
      for (int i = 0; i < kCount; ++i) sends.add(comm, content(0, i, kBytes), 1, 1);
      sends.add(comm, content(0, -1, kBytes), 1, 2);
      sends.wait(comm);
      return;
    }
    // All others come in before the last one.
    Bytes got(kBytes);
    ASSERT_EQ(recv(comm, &got, 0, 2), WEIR_OK) << weir_last_error(comm);
    EXPECT_TRUE(got == content(0, -1, kBytes));
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(recv(comm, &got, 0, 1), WEIR_OK) << weir_last_error(comm);
      ASSERT_TRUE(got == content(0, i, kBytes)) << i;
    }
  });
}

// Likewise where they are empty: what waits at the sender has no bytes, then.
TEST(Tags, AFloodOfEmptyMessagesWaitsAtTheSender) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    constexpr int kCount = 900;
    const auto bytes_of = [](int i) { return static_cast<size_t>(i % 3 == 0 ? 0 : i % 2); };
    if (rank == 0) {
      Sends sends;
      for (int i = 0; i < kCount; ++i) sends.add(comm, content(0, i, bytes_of(i)), 1, i);
      sends.wait(comm);
      return;
    }
    for (int i = kCount; i-- > 0;) {
      Bytes got(bytes_of(i) + 1, 0xee);
      weir_tag_info_t info = {};
      ASSERT_EQ(recv(comm, &got, 0, i, &info), WEIR_OK) << weir_last_error(comm);
      ASSERT_EQ(info.bytes, bytes_of(i)) << i;
      Bytes expected = content(0, i, bytes_of(i));
      expected.push_back(0xee);
      ASSERT_TRUE(got == expected) << i;
    }
  });
}

// Each rank sends what the seed says and receives it in another order.
TEST(RandomPrograms, GiveEveryReceiveItsMessage) {
  const char* seed_text = getenv("WEIR_TEST_SEED");
  const char* rounds_text = getenv("WEIR_TEST_ROUNDS");
  const char* hosts = getenv("WEIR_TEST_HOSTS");
  const unsigned first = seed_text != nullptr ? static_cast<unsigned>(atoi(seed_text)) : 1;
  const unsigned rounds = rounds_text != nullptr ? static_cast<unsigned>(atoi(rounds_text)) : 20;
  for (unsigned seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    const int rank_count = 2 + static_cast<int>(seed % 4);
    const auto body = [seed](int rank, weir_comm_t comm) {
      const int n = size_of(comm);
      struct Message {
        int source, target, tag, number;
        size_t bytes;
      };
      std::minstd_rand random(seed);
      std::vector<Message> messages;
      for (int i = 0; i < 60; ++i) {
        const auto pick = [&](unsigned count) { return static_cast<int>(random() % count); };
        const size_t bytes = pick(3) == 0 ? kSizes[static_cast<size_t>(pick(kSizes.size()))]
                                          : static_cast<size_t>(pick(400));
        messages.push_back(
            {pick(static_cast<unsigned>(n)), pick(static_cast<unsigned>(n)), pick(3), i, bytes});
      }
      // The messages of one sender and tag are received in their order; any receiver may take
      // them at any time between.
      std::minstd_rand own(seed * 1000 + static_cast<unsigned>(rank));
      std::vector<Message> wanted;
      Sends sends;
      for (const Message& message : messages) {
        if (message.target == rank) wanted.push_back(message);
      }
      struct Receive {
        Message message;
        Bytes data;
        weir_tag_info_t info{};
        weir_request_t request = nullptr;
      };
      std::vector<std::unique_ptr<Receive>> receives;
      size_t sent = 0;
      while (sent < messages.size() || !wanted.empty()) {
        if (sent < messages.size() && own() % 2 == 0) {
          const Message& message = messages[sent++];
          if (message.source == rank) {
            sends.add(comm, content(rank, message.number, message.bytes), message.target,
                      message.tag);
          }
        } else if (!wanted.empty()) {
          // The first of a random sender and tag.
          const Message some = wanted[own() % wanted.size()];
          const auto found =
              std::find_if(wanted.begin(), wanted.end(), [&](const Message& message) {
                return message.source == some.source && message.tag == some.tag;
              });
          receives.push_back(std::make_unique<Receive>());
          Receive& receive = *receives.back();
          receive.message = *found;
          wanted.erase(found);
          receive.data.assign(receive.message.bytes, 0xee);
          ASSERT_EQ(recv(comm, &receive.data, receive.message.source, receive.message.tag,
                         &receive.info, &receive.request),
                    WEIR_OK);
          int done = 0;
          if (own() % 4 == 0) {
            ASSERT_EQ(weir_test(&receive.request, &done), WEIR_OK) << weir_last_error(comm);
          }
        }
      }
      for (const auto& receive : receives) {
        ASSERT_EQ(weir_wait_all(&receive->request, 1), WEIR_OK) << weir_last_error(comm);
        const Message& message = receive->message;
        EXPECT_EQ(receive->info.source, message.source);
        EXPECT_EQ(receive->info.tag, message.tag);
        EXPECT_EQ(receive->info.bytes, message.bytes);
        EXPECT_TRUE(receive->data == content(message.source, message.number, message.bytes))
            << "message " << message.number << " of " << message.bytes << " bytes";
      }
      sends.wait(comm);
    };
    if (seed % 3 == 0 && hosts == nullptr) {
      run_threads(rank_count, body);
    } else {
      const std::vector<int> statuses = run_processes_each(rank_count, body, [&](int rank) {
        Environment own;
        if (hosts != nullptr) {
          own.emplace_back("WEIR_HOST_ID", "host " + std::to_string(rank % atoi(hosts)));
        }
        return own;
      });
      for (const int status : statuses) EXPECT_EQ(status, 0);
    }
  }
}

// ---- Trouble ------------------------------------------------------------------------------------

TEST(Tags, WrongArgumentsAreRefused) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    Bytes data(8);
    EXPECT_EQ(send(comm, data, 2, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(send(comm, data, WEIR_ANY_SOURCE, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(send(comm, data, 1 - rank, WEIR_ANY_TAG), WEIR_ERROR_INVALID_ARGUMENT);
    expect_text(comm, "tag -1 is negative");
    EXPECT_EQ(recv(comm, &data, 2, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(recv(comm, &data, -2, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(recv(comm, &data, 0, -2), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_tag_send(comm, nullptr, 1, WEIR_UINT8, 1 - rank, 0, nullptr),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_tag_recv(comm, nullptr, 1, WEIR_UINT8, 1 - rank, 0, nullptr, nullptr),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(
        weir_tag_send(comm, data.data(), 1, static_cast<weir_datatype_t>(99), 1 - rank, 0, nullptr),
        WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_tag_send(nullptr, data.data(), 1, WEIR_UINT8, 0, 0, nullptr),
              WEIR_ERROR_INVALID_ARGUMENT);
    // The communicator is as before.
    check_every_collective(comm, 10);
  });
}

TEST(Tags, AMessageThatIsTooLongIsAMismatchOnBothRanks) {
  for (const size_t bytes : {size_t{9}, size_t{1000}, size_t{100'000}}) {
    for (const bool posted_first : {false, true}) {
      run_processes(
          2,
          [&](int rank, weir_comm_t comm) {
            const auto start = Clock::now();
            weir_result_t result = WEIR_OK;
            weir_request_t request = nullptr;
            if (rank == 0) {
              if (posted_first) {
                ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
              }
              result = send(comm, content(0, 0, bytes), 1, 3);
            } else {
              Bytes data(8);
              ASSERT_EQ(recv(comm, &data, WEIR_ANY_SOURCE, 3, nullptr, &request), WEIR_OK);
              // The message may come before the barrier ends here.
              if (posted_first) result = weir_barrier(comm, nullptr);
              EXPECT_TRUE(result == WEIR_OK || result == WEIR_ERROR_MISMATCH);
              result = weir_wait(&request);
              EXPECT_EQ(result, WEIR_ERROR_MISMATCH);
              expect_text(comm, "rank 0 sent " + std::to_string(bytes) + " bytes with tag 3");
            }
            // A short one has left before its receiver looked at it.
            if (result == WEIR_OK) result = weir_barrier(comm, nullptr);
            EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
            EXPECT_LT(seconds_since(start), 10.0);
          },
          {}, with_timeout(60'000));
    }
  }
}

TEST(Tags, AReceiveThatNobodySendsForEndsAtItsDeadlineAndSaysWhatItWaitsFor) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        Bytes data(8);
        if (rank == 0) {
          EXPECT_EQ(recv(comm, &data, 1, 42), WEIR_ERROR_TIMEOUT) << weir_last_error(comm);
          expect_text(comm, "receive of up to 8 bytes with tag 42 from rank 1");
        } else {
          std::this_thread::sleep_for(std::chrono::milliseconds(2500));
        }
      },
      {}, with_timeout(1000));
}

TEST(Tags, AtTheDeadlineAMessageWithAnotherTagIsNamed) {
  for (const int source : {1, int{WEIR_ANY_SOURCE}}) {
    run_processes(
        2,
        [source](int rank, weir_comm_t comm) {
          Bytes data(8);
          if (rank == 0) {
            EXPECT_EQ(recv(comm, &data, source, 7), WEIR_ERROR_TIMEOUT) << weir_last_error(comm);
            expect_text(comm, "a message of rank 1 with tag 8 waits for a receive");
          } else {
            ASSERT_EQ(send(comm, data, 0, 8), WEIR_OK);
            std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          }
        },
        {}, with_timeout(1000));
  }
}

TEST(Tags, ADeadRankEndsReceivesFromItAndFromAny) {
  for (const bool from_any : {false, true}) {
    Promises promises;
    promises.hold([&] {
      const std::vector<int> statuses = run_processes_status(
          3,
          [&](int rank, weir_comm_t comm) {
            EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
            const auto start = Clock::now();
            if (rank == 1) {
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
              raise(SIGKILL);
            }
            Bytes data(8);
            EXPECT_EQ(recv(comm, &data, from_any ? WEIR_ANY_SOURCE : 1, 1), WEIR_ERROR_PEER_LOST)
                << weir_last_error(comm);
            promises.within(3.0, start);
            expect_text(comm, "rank 1 died");
          },
          {}, with_timeout(60'000));
      EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
    });
  }
}

// What a rank has sent before it left comes; a receive from any rank waits for the others.
TEST(Tags, WhoLeavesHasSentWhatItHasSent) {
  run_processes(3, [](int rank, weir_comm_t comm) {
    Bytes data(8);
    if (rank == 1) {
      ASSERT_EQ(send(comm, content(1, 1, 8), 0, 1), WEIR_OK);
      return;
    }
    if (rank == 2) {
      // After rank 1 has left.
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      ASSERT_EQ(send(comm, content(2, 1, 8), 0, 1), WEIR_OK);
      ASSERT_EQ(recv(comm, &data, 0, 2), WEIR_OK) << weir_last_error(comm);
      // Rank 0 fails next, which is told to all ranks and may overtake what is on its way.
      ASSERT_EQ(send(comm, data, 0, 3), WEIR_OK);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    weir_tag_info_t info = {};
    ASSERT_EQ(recv(comm, &data, WEIR_ANY_SOURCE, 1, &info), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(info.source, 1);
    EXPECT_TRUE(data == content(1, 1, 8));
    ASSERT_EQ(recv(comm, &data, WEIR_ANY_SOURCE, 1, &info), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(info.source, 2);
    EXPECT_TRUE(data == content(2, 1, 8));
    ASSERT_EQ(send(comm, data, 2, 2), WEIR_OK);
    ASSERT_EQ(recv(comm, &data, 2, 3), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(recv(comm, &data, 1, 1), WEIR_ERROR_PEER_LOST);
    expect_text(comm, "rank 1");
  });
}

}  // namespace
}  // namespace weir::test
