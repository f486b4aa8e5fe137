// SPDX-License-Identifier: Apache-2.0
// Every collective on device memory beside the same on memory of the host, for tests on the strict
// libcuda.
#pragma once

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "devices/streams_support.h"

namespace weir::test {

struct Case {
  const char* name;
  size_t send_blocks;  // 0: one
  size_t recv_blocks;
  bool is_rooted;
  bool is_reduction;
};
inline constexpr size_t kEach = ~size_t{0};  // one for each rank
inline constexpr Case kCases[] = {
    {"all_reduce", 1, 1, false, true},      {"reduce", 1, 1, true, true},
    {"broadcast", 1, 1, true, false},       {"reduce_scatter", kEach, 1, false, true},
    {"all_gather", 1, kEach, false, false}, {"all_to_all", kEach, kEach, false, false},
    {"gather", 1, kEach, true, false},      {"scatter", kEach, 1, true, false},
};

inline size_t blocks(size_t of_case, int n) {
  return of_case == kEach ? static_cast<size_t>(n) : 1;
}

inline weir_result_t call(const Case& it, weir_comm_t comm, const void* send, void* recv,
                          size_t count, weir_datatype_t type, weir_redop_t op, int root,
                          weir_request_t* request) {
  const std::string_view name = it.name;
  if (name == "all_reduce") return weir_all_reduce(comm, send, recv, count, type, op, request);
  if (name == "reduce") return weir_reduce(comm, send, recv, count, type, op, root, request);
  if (name == "broadcast") return weir_broadcast(comm, send, recv, count, type, root, request);
  if (name == "reduce_scatter") {
    return weir_reduce_scatter(comm, send, recv, count, type, op, request);
  }
  if (name == "all_gather") return weir_all_gather(comm, send, recv, count, type, request);
  if (name == "all_to_all") return weir_all_to_all(comm, send, recv, count, type, request);
  if (name == "gather") return weir_gather(comm, send, recv, count, type, root, request);
  return weir_scatter(comm, send, recv, count, type, root, request);
}

inline size_t bytes_of(weir_datatype_t type) {
  switch (type) {
    case WEIR_INT8:
    case WEIR_UINT8:
    case WEIR_FLOAT8_E4M3:
    case WEIR_FLOAT8_E5M2:
      return 1;
    case WEIR_FLOAT16:
    case WEIR_BFLOAT16:
      return 2;
    case WEIR_INT32:
    case WEIR_UINT32:
    case WEIR_FLOAT32:
      return 4;
    default:
      return 8;
  }
}

// Small whole numbers of the type, of which no reduction here leaves it.
inline std::vector<unsigned char> values_of(weir_datatype_t type, size_t count, int rank,
                                            int seed) {
  const size_t bytes = bytes_of(type);
  std::vector<unsigned char> all(count * bytes);
  // 1 and 2, as each type has them.
  const auto put = [&](size_t i, auto one, auto two) {
    const bool is_two =
        (i * 7 + static_cast<size_t>(rank) * 5 + static_cast<size_t>(seed)) % 3 == 0;
    const auto value = is_two ? two : one;
    std::memcpy(all.data() + i * bytes, &value, bytes);
  };
  for (size_t i = 0; i < count; ++i) {
    switch (type) {
      case WEIR_FLOAT16:
        put(i, uint16_t{0x3c00}, uint16_t{0x4000});
        break;
      case WEIR_BFLOAT16:
        put(i, uint16_t{0x3f80}, uint16_t{0x4000});
        break;
      case WEIR_FLOAT8_E4M3:
        put(i, uint8_t{0x38}, uint8_t{0x40});
        break;
      case WEIR_FLOAT8_E5M2:
        put(i, uint8_t{0x3c}, uint8_t{0x40});
        break;
      case WEIR_FLOAT32:
        put(i, 1.0F, 2.0F);
        break;
      case WEIR_FLOAT64:
        put(i, 1.0, 2.0);
        break;
      default:
        put(i, uint64_t{1}, uint64_t{2});
        break;
    }
  }
  return all;
}

// The same call on memory of the host and of the device.
inline void expect_as_on_host(const Case& it, weir_comm_t comm, int n, int rank, size_t count,
                              weir_datatype_t type, weir_redop_t op, int seed, Way way,
                              const Stream& stream) {
  const int root = seed % n;
  const bool receives = !it.is_rooted || rank == root || std::string_view(it.name) == "broadcast" ||
                        std::string_view(it.name) == "scatter";
  const auto input = values_of(type, count * blocks(it.send_blocks, n), rank, seed);
  std::vector<unsigned char> expected(count * blocks(it.recv_blocks, n) * bytes_of(type), 0xee);
  const std::vector<unsigned char> untouched = expected;
  ASSERT_WEIR(comm, call(it, comm, input.data(), expected.data(), count, type, op, root, nullptr));
  const DeviceBytes send(input);
  const DeviceBytes recv(untouched);
  perform(comm, way, stream, [&](weir_request_t* request) {
    return call(it, comm, send.data(), recv.data(), count, type, op, root, request);
  });
  EXPECT_EQ(recv.get() == (receives ? expected : untouched), true)
      << it.name << ", count " << count << ", type " << type << ", op " << op << ", rank " << rank
      << " of " << n;
}

inline constexpr Way kWays[] = {Way::kBlocking, Way::kRequest, Way::kStream,
                                Way::kStreamAndRequest};

inline void every_collective(weir_comm_t comm, int n, int rank) {
  const Stream stream;
  int seed = 0;
  for (const Case& it : kCases) {
    for (const size_t count : {size_t{1}, size_t{1000}, size_t{30011}, size_t{150001}}) {
      expect_as_on_host(it, comm, n, rank, count, WEIR_INT32, WEIR_SUM, seed, kWays[seed % 4],
                        stream);
      ++seed;
    }
  }
}

inline void replay(weir_comm_t comm, int n, int rank) {
  expect_sum(comm, n, rank);
  const Stream stream;
  const DeviceArray<int> send(std::vector<int>(40000, 0));
  const DeviceArray<int> recv(std::vector<int>(40000, 0));
  const DeviceArray<int> all(std::vector<int>(static_cast<size_t>(n) * 1000, 0));
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
  {
    const Graph graph(stream, [&] {
      EXPECT_WEIR(comm, weir_all_reduce(comm, send.data(), recv.data(), 40000, WEIR_INT32, WEIR_SUM,
                                        nullptr));
      EXPECT_WEIR(comm, weir_all_gather(comm, recv.data(), all.data(), 1000, WEIR_INT32, nullptr));
    });
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    for (int round = 0; round < 5; ++round) {
      send.set(std::vector<int>(40000, rank + round));
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * ((rank + round) % n)));
      graph.launch(stream);
      stream.synchronize();
      const int sum = n * round + n * (n - 1) / 2;
      EXPECT_EQ(recv.get(), std::vector<int>(40000, sum));
      EXPECT_EQ(all.get(), std::vector<int>(static_cast<size_t>(n) * 1000, sum));
      if (round == 2) expect_sum(comm, n, rank);  // calls without a graph in between
    }
  }
  expect_sum(comm, n, rank);
}

// All ranks are told both reasons, as often as they ask, and go on with memory of the host.
inline void refused(weir_comm_t comm, int n, int rank, const std::vector<std::string>& words) {
  const DeviceArray<int> data(std::vector<int>{rank});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_ERROR_UNSUPPORTED);
    const std::string text = weir_last_error(comm);
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << text;
    int value = rank + 1;
    EXPECT_WEIR(comm, weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr));
    EXPECT_EQ(value, n * (n + 1) / 2);
  }
}

}  // namespace weir::test
