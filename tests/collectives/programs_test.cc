// SPDX-License-Identifier: Apache-2.0
// weir_comm_add_program: programs of the caller's run, or all ranks hear why not, and the
// communicator is as before.
#include "collectives/programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/algo/check.h"
#include "core/sched/json.h"
#include "sched/msccl_documents.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using testing::HasSubstr;

std::string programs_of(const char* name, Rank n, bool mapped = false) {
  algo::Problem problem;
  problem.rank_count = n;
  problem.mapped = mapped;
  const algo::Algorithm* algorithm = algo::find_algorithm(Collective::kAllReduce, name);
  return sched::to_json({algo::access_of(problem), algo::compile_all(*algorithm, problem)});
}

weir_result_t add(weir_comm_t comm, const char* name, const std::string& text, uint32_t flags = 0) {
  return weir_comm_add_program(comm, name, text.data(), text.size(), flags);
}

// The communicator still works.
void expect_usable(weir_comm_t comm) {
  int one = 1;
  ASSERT_EQ(weir_all_reduce(comm, &one, &one, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK)
      << weir_last_error(comm);
  int size = 0;
  ASSERT_EQ(weir_comm_size(comm, &size), WEIR_OK);
  EXPECT_EQ(one, size);
}

struct Given {
  const char* name;
  std::string text;
  const char* transport;
};

TEST(AddedPrograms, RunOverEveryTransportAndAreRight) {
  std::vector<Given> all;
  for (const char* transport : {"shm", "tcp"}) {
    all.push_back({"my_ring", programs_of("ring", 4), transport});
    all.push_back({"my_tree", programs_of("double_binary_tree", 4), transport});
    all.push_back({"my_pairs", algo::msccl_pairs_all_reduce(4), transport});
    all.push_back({"their_ring", algo::msccl_ring_all_reduce(4, 3, true), transport});
    all.push_back({"doubling", algo::msccl_doubling_all_reduce(4), transport});
  }
  all.push_back({"my_direct", programs_of("direct", 4, true), "shm"});
  all.push_back({"my_two_phase", programs_of("direct_two_phase", 4, true), "shm"});
  for (const Given& given : all) {
    testing::internal::CaptureStderr();
    run_processes(4,
                  [&](int, weir_comm_t comm) {
                    const char* const wrong =
                        add_and_reduce(comm, given.name, given.text.data(), given.text.size(),
                                       WEIR_PROGRAM_PREFERRED);
                    EXPECT_EQ(wrong, nullptr) << wrong;
                  },
                  {{"WEIR_TRANSPORT", given.transport}, {"WEIR_EXPLAIN", "1"}});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr(std::string(": ") + given.name + ", preferred by the program"));
  }
}

TEST(AddedPrograms, OfAThreadPerRankAreRightAndCanBeAddedOneAfterTheOther) {
  run_threads(3, [&](int, weir_comm_t comm) {
    for (const char* name : {"ring", "recursive_doubling", "double_binary_tree"}) {
      const std::string text = programs_of(name, 3);
      const char* const wrong = add_and_reduce(comm, (std::string("my_") + name).c_str(),
                                               text.data(), text.size(), WEIR_PROGRAM_PREFERRED);
      EXPECT_EQ(wrong, nullptr) << wrong;
    }
  });
}

TEST(AddedPrograms, OfOneRankAreRight) {
  run_threads(1, [&](int, weir_comm_t comm) {
    const std::string text = programs_of("ring", 1);
    const char* const wrong =
        add_and_reduce(comm, "alone", text.data(), text.size(), WEIR_PROGRAM_PREFERRED);
    EXPECT_EQ(wrong, nullptr) << wrong;
    EXPECT_EQ(add(comm, "wrong", "{}"), WEIR_ERROR_INVALID_ARGUMENT);
    expect_usable(comm);
  });
}

TEST(AddedPrograms, ThatDifferBetweenRanksAreRefusedOnAllAndNameTheRank) {
  run_processes(4, [&](int rank, weir_comm_t comm) {
    const std::string ring = programs_of("ring", 4);
    EXPECT_EQ(add(comm, "mine", rank == 2 ? ring + " " : ring), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 2 gave"));
    EXPECT_EQ(add(comm, rank == 1 ? "other" : "mine", ring), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 1 gave"));
    EXPECT_EQ(add(comm, "mine", ring, rank == 3 ? WEIR_PROGRAM_PREFERRED : 0),
              WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 3 gave"));
    EXPECT_EQ(add(comm, "mine", rank == 1 ? "{}" : ring), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 1: mine: format: is missing"));
    expect_usable(comm);
    EXPECT_EQ(add(comm, "mine", ring), WEIR_OK) << weir_last_error(comm);
    expect_usable(comm);
  });
}

TEST(AddedPrograms, ThatCannotBeAddedSayWhy) {
  run_processes(4, [&](int rank, weir_comm_t comm) {
    const std::string ring = programs_of("ring", 4);
    const auto refused = [&](const char* name, const std::string& text, const char* expected) {
      EXPECT_EQ(add(comm, name, text), WEIR_ERROR_INVALID_ARGUMENT);
      EXPECT_THAT(weir_last_error(comm), HasSubstr(expected));
    };
    std::string wrong = ring;
    const size_t at = wrong.find("\"scratch\",\n", wrong.find("\"operands\""));
    ASSERT_NE(at, std::string::npos);
    wrong.replace(at, 9, "\"in\"");
    refused("mine", wrong, "the programs are wrong (");
    refused("mine", wrong, "rank 0 op 2 ");
    refused("mine", programs_of("ring", 3), "programs of 3 ranks, the communicator has 4");
    refused("ring", ring, "'ring' is the name of an algorithm of all_reduce that Weir has");
    refused("a,b", ring, "the name of a set of programs");
    refused("mine", "", "the file is empty");
    ASSERT_EQ(add(comm, "mine", ring), WEIR_OK) << weir_last_error(comm);
    refused("mine", ring, "'mine' is an algorithm of this communicator already");
    EXPECT_EQ(weir_comm_add_program(comm, nullptr, "", 0, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_comm_add_program(comm, "a", nullptr, 0, 0), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_comm_add_program(comm, "a", "", 0, 2), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_comm_add_program(nullptr, "a", "", 0, 0), WEIR_ERROR_INVALID_ARGUMENT);

    // Rank 0 has called an operation that the others have not.
    int one = 1, sum = 0;
    weir_request_t request = nullptr;
    if (rank == 0) {
      ASSERT_EQ(weir_all_reduce(comm, &one, &sum, 1, WEIR_INT32, WEIR_SUM, &request), WEIR_OK);
    }
    EXPECT_EQ(add(comm, "late", ring), WEIR_ERROR_INVALID_USAGE);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 0: operations are in flight"));
    if (rank != 0) {
      ASSERT_EQ(weir_all_reduce(comm, &one, &sum, 1, WEIR_INT32, WEIR_SUM, &request), WEIR_OK);
    }
    ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(sum, 4);
    EXPECT_EQ(add(comm, "late", ring), WEIR_OK) << weir_last_error(comm);
    expect_usable(comm);
  });
}

TEST(AddedPrograms, ARankThatDoesNotCallIsNamedAtTheDeadline) {
  run_processes(3, [&](int rank, weir_comm_t comm) {
    ASSERT_EQ(weir_comm_set_timeout(comm, 1000), WEIR_OK);
    if (rank == 1) {
      sleep(2);
      return;
    }
    EXPECT_EQ(add(comm, "mine", programs_of("ring", 3)), WEIR_ERROR_TIMEOUT);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("must call weir_comm_add_program"));
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 1"));
  });
}

// What is offered besides them does not change.
TEST(AddedPrograms, OfADeterministicCommunicatorAreThoseInRankOrder) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  testing::internal::CaptureStderr();
  run_processes(
      4,
      [&](int, weir_comm_t comm) {
        ASSERT_EQ(add(comm, "my_ring", programs_of("ring", 4), WEIR_PROGRAM_PREFERRED), WEIR_OK);
        expect_usable(comm);
        ASSERT_EQ(add(comm, "in_order", programs_of("ordered", 4), WEIR_PROGRAM_PREFERRED),
                  WEIR_OK);
        expect_usable(comm);
      },
      {{"WEIR_EXPLAIN", "1"}, {"WEIR_TRANSPORT", "tcp"}}, config);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text,
              HasSubstr("'my_ring', which the program prefers, is ignored: it does not fold"));
  EXPECT_THAT(text, HasSubstr(": in_order, preferred by the program"));
}

}  // namespace
}  // namespace weir::test
