// SPDX-License-Identifier: Apache-2.0
// Sums over leaves through the C API: the same bits as a fold in one process, for every number of
// ranks, over whatever transport the environment names. With WEIR_TEST_HOSTS=2 the processes are
// those of two hosts, in turns.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "support/leaf_reference.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

int rank_of(weir_comm_t comm) {
  int rank = -1;
  EXPECT_EQ(weir_comm_rank(comm, &rank), WEIR_OK);
  return rank;
}

int size_of(weir_comm_t comm) {
  int n = 0;
  EXPECT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  return n;
}

void run(int n, const Body& body, Environment environment = {}) {
  const char* hosts = std::getenv("WEIR_TEST_HOSTS");
  const std::vector<int> statuses = run_processes_each(
      n, body,
      [&](int rank) {
        Environment own = environment;
        if (hosts != nullptr && std::string(hosts) == "2") {
          own.emplace_back("WEIR_HOST_ID", "leaves" + std::to_string(rank % 2));
        }
        return own;
      },
      with_timeout(120'000));
  for (const int status : statuses) EXPECT_EQ(status, 0) << n << " ranks";
}

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

enum class Presence { kAll, kSome, kOne, kNone };

struct Case {
  DataType type;
  weir_redop_t op;
  uint32_t leaf_count;
  size_t count;
  Presence presence = Presence::kAll;

  Fold fold() const {
    constexpr Fold kFolds[] = {Fold::kSum, Fold::kProd, Fold::kMax, Fold::kMin, Fold::kSum};
    return kFolds[op];
  }
  uint32_t divisor() const { return op == WEIR_AVG ? leaf_count : 1; }
  weir_datatype_t c_type() const { return static_cast<weir_datatype_t>(type); }
  bool is_present(uint32_t leaf) const {
    switch (presence) {
      case Presence::kAll:
        return true;
      case Presence::kSome:
        return mixed(leaf) % 3 != 0;
      case Presence::kOne:
        return leaf == leaf_count / 2;
      case Presence::kNone:
        return false;
    }
    return false;
  }
  std::string text() const {
    return std::string(name_of(type)) + " op " + std::to_string(op) + ", " +
           std::to_string(leaf_count) + " leaves of " + std::to_string(count) + ", presence " +
           std::to_string(static_cast<int>(presence));
  }
};

// Sums of them depend on the order; some are -0, infinite or NaN.
Bytes leaf_of(const Case& one, uint32_t leaf) {
  const size_t element = element_bytes(one.type);
  Bytes data(one.count * element);
  for (size_t i = 0; i < one.count; ++i) {
    const uint64_t bits = mixed(i * 0x9e3779b97f4a7c15u + leaf + 1);
    double value =
        std::ldexp(static_cast<double>(bits % 2001) / 1000 - 1.0, static_cast<int>(bits >> 32 & 7));
    // Every 7th element is -0 in all leaves; of the others, few are special.
    if (i % 7 == 3) value = -0.0;
    if (bits % 509 == 1) value = INFINITY;
    if (bits % 509 == 2) value = -INFINITY;
    if (bits % 509 == 3) value = NAN;
    const auto put = [&](auto lane) { std::memcpy(&data[i * sizeof(lane)], &lane, sizeof(lane)); };
    if (one.type < DataType::kFloat16) {
      std::memcpy(&data[i * element], &bits, element);
    } else if (one.type == DataType::kFloat64) {
      put(value);
    } else if (one.type == DataType::kFloat32) {
      put(static_cast<float>(value));
    } else {
      const uint32_t code = encode_small_float(one.type, static_cast<float>(value));
      std::memcpy(&data[i * element], &code, element);
    }
  }
  return data;
}

template <typename T>
Bytes neutral_of(weir_redop_t op, size_t count) {
  using Limits = std::numeric_limits<T>;
  constexpr T kLeast = Limits::has_infinity ? -Limits::infinity() : Limits::min();
  constexpr T kGreatest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  constexpr T kZero = Limits::has_infinity ? static_cast<T>(-0.0) : T{0};
  const T values[] = {kZero, T{1}, kLeast, kGreatest, kZero};
  Bytes bytes(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) std::memcpy(&bytes[i * sizeof(T)], &values[op], sizeof(T));
  return bytes;
}

// What is left when no leaf is present.
Bytes neutral(const Case& one) {
  switch (partial_type(one.type)) {
    case DataType::kInt8:
      return neutral_of<int8_t>(one.op, one.count);
    case DataType::kUint8:
      return neutral_of<uint8_t>(one.op, one.count);
    case DataType::kInt32:
      return neutral_of<int32_t>(one.op, one.count);
    case DataType::kUint32:
      return neutral_of<uint32_t>(one.op, one.count);
    case DataType::kInt64:
      return neutral_of<int64_t>(one.op, one.count);
    case DataType::kUint64:
      return neutral_of<uint64_t>(one.op, one.count);
    case DataType::kFloat64:
      return neutral_of<double>(one.op, one.count);
    default:
      return neutral_of<float>(one.op, one.count);
  }
}

// Made once, before the ranks are.
struct Prepared {
  Case one;
  std::vector<Bytes> leaves;  // empty: absent
  Bytes expected;
};

Prepared prepare(const Case& one) {
  Prepared prepared{one, {}, {}};
  std::vector<Node> wide(one.leaf_count);
  for (uint32_t i = 0; i < one.leaf_count; ++i) {
    prepared.leaves.push_back(one.is_present(i) ? leaf_of(one, i) : Bytes());
    if (one.is_present(i)) wide[i] = widened(one.type, prepared.leaves[i]);
  }
  const LeafNode root{0, leaf_root_level(one.leaf_count)};
  Node node = reference_node(one.type, one.fold(), wide, one.count, root);
  if (!node) node = neutral(one);
  prepared.expected = reference_result(one.type, *node, one.count, one.divisor());
  return prepared;
}

// The nodes of the calling rank, whose leaves come all at once or one by one.
Bytes nodes_of(const Prepared& it, int n, int rank, bool one_by_one) {
  weir_leaf_share_t share = WEIR_LEAF_SHARE_INIT;
  EXPECT_EQ(weir_leaf_share(static_cast<int>(it.one.leaf_count), n, rank, &share), WEIR_OK);
  const size_t element = element_bytes(partial_type(it.one.type));
  Bytes nodes(static_cast<size_t>(share.node_capacity) * it.one.count * element + 1);
  weir_tree_fold_t fold = WEIR_TREE_FOLD_INIT;
  fold.leaf_count = static_cast<int>(it.one.leaf_count);
  fold.rank_count = n;
  fold.rank = rank;
  fold.type = it.one.c_type();
  fold.op = it.one.op;
  fold.count = it.one.count;
  fold.nodes = nodes.data();
  std::vector<const void*> leaves;
  for (int i = 0; i < share.leaf_count; ++i) {
    const Bytes& leaf = it.leaves[static_cast<size_t>(share.first_leaf) + static_cast<size_t>(i)];
    leaves.push_back(leaf.empty() ? nullptr : leaf.data());
  }
  const int step = one_by_one ? 1 : std::max(1, share.leaf_count);
  for (int i = 0; i < share.leaf_count; i += step) {
    EXPECT_EQ(weir_tree_fold(&fold, leaves.data() + i, step, it.one.c_type()), WEIR_OK)
        << weir_last_error(nullptr);
  }
  EXPECT_EQ(fold.folded_count, share.leaf_count);
  return nodes;
}

void check_case(weir_comm_t comm, const Prepared& it, bool one_by_one) {
  const Case& one = it.one;
  const int n = size_of(comm);
  const int rank = rank_of(comm);
  const auto leaf_count = static_cast<int>(one.leaf_count);
  const size_t element = element_bytes(one.type);
  const Bytes nodes = nodes_of(it, n, rank, one_by_one);

  Bytes result(it.expected.size() + 1, 0xa5);
  ASSERT_EQ(weir_all_reduce_leaves(comm, nodes.data(), result.data(), one.count, leaf_count,
                                   one.c_type(), one.op, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  ASSERT_EQ(result.back(), 0xa5);
  result.pop_back();
  ASSERT_EQ(result, it.expected) << "all_reduce_leaves of " << one.text() << " over " << n;

  const int root = n / 2;
  result.assign(it.expected.size(), 0xa5);
  weir_request_t request = nullptr;
  ASSERT_EQ(weir_reduce_leaves(comm, nodes.data(), rank == root ? result.data() : nullptr,
                               one.count, leaf_count, one.c_type(), one.op, root, &request),
            WEIR_OK)
      << weir_last_error(comm);
  ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
  if (rank == root) {
    ASSERT_EQ(result, it.expected) << "reduce_leaves of " << one.text() << " over " << n;
  }

  // The first n blocks of as many elements.
  const size_t block = one.count / static_cast<size_t>(n);
  Prepared blocks = it;
  blocks.one.count = block * static_cast<size_t>(n);
  const Bytes block_nodes = nodes_of(blocks, n, rank, !one_by_one);
  result.assign(block * element, 0xa5);
  ASSERT_EQ(weir_reduce_scatter_leaves(comm, block_nodes.data(), result.data(), block, leaf_count,
                                       one.c_type(), one.op, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  const auto begin = it.expected.begin() +
                     static_cast<std::ptrdiff_t>(block * element * static_cast<size_t>(rank));
  ASSERT_EQ(result, Bytes(begin, begin + static_cast<std::ptrdiff_t>(block * element)))
      << "reduce_scatter_leaves of " << one.text() << " over " << n;
  if (partial_type(one.type) != one.type) return;

  Bytes in_place = nodes_of(it, n, rank, one_by_one);
  // A rank without nodes has only the result.
  in_place.resize(std::max(in_place.size(), it.expected.size()));
  ASSERT_EQ(weir_all_reduce_leaves(comm, in_place.data(), in_place.data(), one.count, leaf_count,
                                   one.c_type(), one.op, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  in_place.resize(it.expected.size());
  ASSERT_EQ(in_place, it.expected) << "in place, " << one.text() << " over " << n;
}

// Every type, with the operations, sizes and numbers of leaves in turn.
const std::vector<Prepared>& small_cases() {
  static const std::vector<Prepared> cases = [] {
    std::vector<Prepared> made;
    uint32_t turn = 0;
    for (const uint32_t leaf_count : {1u, 3u, 8u, 16u, 24u, 64u}) {
      for (uint32_t type = 0; type < kDataTypeCount; ++type, ++turn) {
        const size_t count = leaf_count == 64 || type % 3 == 0 ? 4097 : type % 3 == 1 ? 7 : 1;
        made.push_back(prepare({static_cast<DataType>(type), static_cast<int>(turn % 5), leaf_count,
                                count, static_cast<Presence>(turn / 3 % 3)}));
      }
      made.push_back(prepare({DataType::kBfloat16, WEIR_SUM, leaf_count, 4097}));
      made.push_back(prepare({DataType::kFloat32, WEIR_AVG, leaf_count, 700, Presence::kSome}));
    }
    for (int op = WEIR_SUM; op <= WEIR_AVG; ++op) {
      made.push_back(prepare({DataType::kFloat32, op, 8, 7, Presence::kNone}));
      made.push_back(prepare({DataType::kFloat16, op, 8, 7, Presence::kNone}));
    }
    return made;
  }();
  return cases;
}

class Leaves : public testing::TestWithParam<int> {};

TEST_P(Leaves, GiveTheSameBitsForThisNumberOfRanks) {
  const std::vector<Prepared>& cases = small_cases();
  run(GetParam(), [&](int, weir_comm_t comm) {
    for (size_t i = 0; i < cases.size(); ++i) {
      check_case(comm, cases[i], i % 2 == 0);
      if (testing::Test::HasFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Leaves, testing::Values(1, 2, 3, 4, 5, 7, 8));

TEST(LeavesOfManyElements, GiveTheSameBits) {
  const std::vector<Prepared> cases = {
      prepare({DataType::kFloat32, WEIR_SUM, 8, 1 << 20}),
      prepare({DataType::kBfloat16, WEIR_AVG, 6, 1 << 18}),
      prepare({DataType::kInt8, WEIR_SUM, 3, 1 << 20}),
  };
  for (const int n : {1, 2, 3, 4, 8}) {
    run(n, [&](int, weir_comm_t comm) {
      for (const Prepared& one : cases) {
        check_case(comm, one, true);
        if (testing::Test::HasFailure()) return;
      }
    });
  }
}

// In shared memory also through messages, and whatever else the communicator promises.
TEST(LeavesByEveryWay, GiveTheSameBits) {
  const std::vector<Prepared> cases = {
      prepare({DataType::kFloat32, WEIR_SUM, 8, 70'001}),
      prepare({DataType::kFloat16, WEIR_SUM, 8, 4097, Presence::kSome}),
      prepare({DataType::kFloat32, WEIR_AVG, 6, 5}),
      prepare({DataType::kBfloat16, WEIR_AVG, 16, 33}),
  };
  const char* transport = std::getenv("WEIR_TRANSPORT");
  const char* hooks = std::getenv("WEIR_HOOKS");
  const char* hosts = std::getenv("WEIR_TEST_HOSTS");
  const bool is_mapped = (transport == nullptr || std::string(transport) == "shm") &&
                         hooks == nullptr && hosts == nullptr;
  for (const algo::Algorithm* algorithm : algo::leaf_algorithms()) {
    if (algorithm->needs_mapped && !is_mapped) continue;
    for (const int n : {2, 3, 4, 8}) {
      std::vector<Prepared> served;
      for (const Prepared& it : cases) {
        algo::Problem problem;
        problem.collective = algorithm->collective;
        problem.rank_count = static_cast<Rank>(n);
        problem.mapped = is_mapped;
        problem.leaf_count = it.one.leaf_count;
        if (algorithm->supports(problem)) served.push_back(it);
      }
      const std::string forced =
          std::string(name_of(algorithm->collective)) + "_leaves=" + algorithm->name;
      SCOPED_TRACE(forced + " over " + std::to_string(n));
      run(n,
          [&](int, weir_comm_t comm) {
            for (const Prepared& one : served) {
              check_case(comm, one, false);
              if (testing::Test::HasFailure()) return;
            }
          },
          {{"WEIR_ALGORITHM", forced}});
      if (HasFailure()) return;
    }
  }
}

TEST(LeavesInAGroup, AndWithRequestsComplete) {
  const Prepared it = prepare({DataType::kBfloat16, WEIR_SUM, 8, 3000});
  run(3, [&](int rank, weir_comm_t comm) {
    const Bytes nodes = nodes_of(it, 3, rank, true);
    std::vector<Bytes> results(4, Bytes(it.expected.size()));
    std::vector<weir_request_t> requests(2);
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_EQ(weir_all_reduce_leaves(comm, nodes.data(), results[i].data(), it.one.count, 8,
                                       WEIR_BFLOAT16, WEIR_SUM,
                                       i < requests.size() ? &requests[i] : nullptr),
                WEIR_OK);
    }
    ASSERT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(comm);
    ASSERT_EQ(weir_wait_all(requests.data(), requests.size()), WEIR_OK);
    for (const Bytes& result : results) ASSERT_EQ(result, it.expected);
  });
}

// -0 stays -0 on every way that an absent leaf takes; +0 would have another sign bit.
TEST(LeavesThatAreAbsent, TurnNoNegativeZeroIntoAPositiveOne) {
  for (const int n : {1, 2, 4, 5}) {
    run(n, [&](int rank, weir_comm_t comm) {
      for (uint32_t present = 0; present < 8; ++present) {
        Prepared it;
        it.one = {DataType::kFloat32, WEIR_SUM, 8, 1};
        it.leaves.resize(8);
        const float zero = -0.0f;
        it.leaves[present].resize(sizeof zero);
        std::memcpy(it.leaves[present].data(), &zero, sizeof zero);
        const Bytes nodes = nodes_of(it, n, rank, rank % 2 == 0);
        float result = 1;
        ASSERT_EQ(weir_all_reduce_leaves(comm, nodes.data(), &result, 1, 8, WEIR_FLOAT32, WEIR_SUM,
                                         nullptr),
                  WEIR_OK)
            << weir_last_error(comm);
        ASSERT_EQ(result, 0.0f);
        ASSERT_TRUE(std::signbit(result)) << "leaf " << present << " of " << n << " ranks";
      }
    });
  }
}

TEST(LeavesMismatch, IsNamedOnEveryRank) {
  struct Other {
    int leaf_count;
    size_t count;
    weir_datatype_t type;
    const char* text;
  };
  for (const Other& other :
       {Other{16, 64, WEIR_FLOAT32, "leaf_count 16"}, Other{8, 65, WEIR_FLOAT32, "count 65"},
        Other{8, 64, WEIR_INT32, "int32"}}) {
    for (const char* hooks : {"", "check"}) {
      run(3,
          [&](int rank, weir_comm_t comm) {
            const std::vector<float> nodes(1000, 1.0f);
            std::vector<float> result(1000);
            const Other mine = rank == 1 ? other : Other{8, 64, WEIR_FLOAT32, ""};
            EXPECT_EQ(weir_all_reduce_leaves(comm, nodes.data(), result.data(), mine.count,
                                             mine.leaf_count, mine.type, WEIR_SUM, nullptr),
                      WEIR_ERROR_MISMATCH)
                << weir_last_error(comm);
            const std::string text = weir_last_error(comm);
            EXPECT_NE(text.find(other.text), std::string::npos) << text;
            EXPECT_NE(text.find("all_reduce_leaves(float32, sum, count 64, leaf_count 8)"),
                      std::string::npos)
                << text;
          },
          {{"WEIR_HOOKS", hooks}});
    }
  }
}

TEST(LeavesMismatch, AFoldWithoutLeavesIsAnotherCall) {
  run(2, [](int rank, weir_comm_t comm) {
    const std::vector<float> data(64, 1.0f);
    std::vector<float> result(64);
    EXPECT_EQ(rank == 0 ? weir_all_reduce_leaves(comm, data.data(), result.data(), 64, 2,
                                                 WEIR_FLOAT32, WEIR_SUM, nullptr)
                        : weir_all_reduce(comm, data.data(), result.data(), 64, WEIR_FLOAT32,
                                          WEIR_SUM, nullptr),
              WEIR_ERROR_MISMATCH)
        << weir_last_error(comm);
  });
}

TEST(LeavesArguments, ThatAreWrongAreNamedAndChangeNothing) {
  run_threads(1, [](int, weir_comm_t comm) {
    const auto expect_invalid = [&](weir_result_t result, const std::string& part) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
      const std::string text = weir_last_error(nullptr);
      EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
    };
    std::vector<float> nodes(64, 1.0f);
    std::vector<float> result(64);
    const auto all_reduce = [&](const void* from, void* to, int leaf_count, weir_datatype_t type,
                                weir_redop_t op) {
      return weir_all_reduce_leaves(comm, from, to, 8, leaf_count, type, op, nullptr);
    };
    float* const to = result.data();
    expect_invalid(all_reduce(nodes.data(), to, 0, WEIR_FLOAT32, WEIR_SUM), "leaf_count 0");
    expect_invalid(all_reduce(nodes.data(), to, WEIR_LEAF_COUNT_MAX + 1, WEIR_FLOAT32, WEIR_SUM),
                   "leaf_count 32769");
    expect_invalid(all_reduce(nodes.data(), to, 4, static_cast<weir_datatype_t>(99), WEIR_SUM),
                   "data type 99");
    expect_invalid(all_reduce(nodes.data(), to, 4, WEIR_FLOAT32, 9), "reduction 9");
    expect_invalid(all_reduce(nullptr, to, 4, WEIR_FLOAT32, WEIR_SUM), "nodes is NULL");
    expect_invalid(all_reduce(nodes.data(), nullptr, 4, WEIR_FLOAT32, WEIR_SUM), "result is NULL");
    expect_invalid(all_reduce(nodes.data(), nodes.data() + 1, 4, WEIR_FLOAT32, WEIR_SUM),
                   "overlap");
    expect_invalid(all_reduce(nodes.data(), nodes.data(), 4, WEIR_BFLOAT16, WEIR_SUM), "overlap");
    expect_invalid(
        weir_reduce_leaves(comm, nodes.data(), to, 8, 4, WEIR_FLOAT32, WEIR_SUM, 1, nullptr),
        "root");
    expect_invalid(weir_all_reduce_leaves(comm, nodes.data(), to, SIZE_MAX / 8, 4, WEIR_FLOAT32,
                                          WEIR_SUM, nullptr),
                   "overflows");
    const float factor = 2;
    weir_redop_t scaled = 0;
    ASSERT_EQ(weir_redop_create_premul_sum(comm, &factor, WEIR_FLOAT32, &scaled), WEIR_OK);
    expect_invalid(all_reduce(nodes.data(), to, 4, WEIR_FLOAT32, scaled), "no factor");
    EXPECT_EQ(all_reduce(nodes.data(), to, 4, WEIR_FLOAT32, WEIR_SUM), WEIR_OK);
    EXPECT_EQ(result[7], 1.0f);
  });

  const auto expect_invalid = [](weir_result_t result, const std::string& part) {
    EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
    const std::string text = weir_last_error(nullptr);
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  };
  weir_leaf_share_t share = WEIR_LEAF_SHARE_INIT;
  expect_invalid(weir_leaf_share(8, 2, 2, &share), "rank 2 is not one of 2");
  expect_invalid(weir_leaf_share(0, 2, 1, &share), "leaf_count 0");
  expect_invalid(weir_leaf_share(8, 2, 1, nullptr), "WEIR_LEAF_SHARE_INIT");
  std::vector<float> nodes(64);
  const std::vector<float> leaf(4, 1.0f);
  const void* leaves[] = {leaf.data(), leaf.data(), leaf.data(), leaf.data(), leaf.data()};
  weir_tree_fold_t fold = WEIR_TREE_FOLD_INIT;
  fold.leaf_count = 8;
  fold.rank_count = 2;
  fold.count = 4;
  fold.nodes = nodes.data();
  expect_invalid(weir_tree_fold(&fold, leaves, 5, WEIR_FLOAT32), "rank 0 has 4 left");
  expect_invalid(weir_tree_fold(&fold, leaves, 1, WEIR_BFLOAT16), "neither float32");
  ASSERT_EQ(weir_tree_fold(&fold, leaves, 3, WEIR_FLOAT32), WEIR_OK);
  expect_invalid(weir_tree_fold(&fold, leaves, 2, WEIR_FLOAT32), "rank 0 has 1 left");
  fold.op = 16;
  expect_invalid(weir_tree_fold(&fold, leaves, 1, WEIR_FLOAT32), "reduction 16");
  fold.op = WEIR_SUM;
  fold.nodes = nullptr;
  expect_invalid(weir_tree_fold(&fold, leaves, 1, WEIR_FLOAT32), "nodes is NULL");
  fold.nodes = nodes.data();
  ASSERT_EQ(weir_tree_fold(&fold, leaves, 1, WEIR_FLOAT32), WEIR_OK);
  EXPECT_EQ(fold.folded_count, 4);
  EXPECT_EQ(nodes[0], 4.0f);
  EXPECT_EQ(weir_partial_type(WEIR_BFLOAT16), WEIR_FLOAT32);
  EXPECT_EQ(weir_partial_type(WEIR_INT8), WEIR_INT8);
}

}  // namespace
}  // namespace weir::test
