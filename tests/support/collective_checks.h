// SPDX-License-Identifier: Apache-2.0
// One check per collective: runs it with inputs whose result is known in closed form, in every way
// the API allows (out of place, in place, nonblocking), and compares every element. Integers of a
// few bits, so that sums are exact in every type and in any order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "weir/weir.h"

namespace weir::test {

// Input of `rank` at element i of a buffer: 0, 1 or 2.
inline int input_value(int rank, size_t i) {
  return static_cast<int>((i * 7 + static_cast<size_t>(rank) * 5 + i / 13) % 3);
}

enum class How { kOutOfPlace, kInPlace, kNonblocking };

// What the checks need of a communicator.
struct Bench {
  weir_comm_t comm = nullptr;
  int n = 1;
  int r = 0;
  explicit Bench(weir_comm_t c) : comm(c) {
    EXPECT_EQ(weir_comm_size(comm, &n), WEIR_OK);
    EXPECT_EQ(weir_comm_rank(comm, &r), WEIR_OK);
  }
};

// Calls operation(request) blocking or not.
template <typename Operation>
void perform(weir_comm_t comm, How how, Operation operation) {
  if (how != How::kNonblocking) {
    ASSERT_EQ(operation(nullptr), WEIR_OK) << weir_last_error(comm);
    return;
  }
  weir_request_t request = nullptr;
  ASSERT_EQ(operation(&request), WEIR_OK) << weir_last_error(comm);
  int done = 0;
  for (int i = 0; i < 3 && done == 0; ++i) {
    ASSERT_EQ(weir_test(&request, &done), WEIR_OK) << weir_last_error(comm);
  }
  if (done == 0) {
    ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
  }
  ASSERT_EQ(request, nullptr);
}

using Values = std::vector<float>;

inline void expect_values(const Values& got, size_t offset, const Values& expected,
                          const std::string& what) {
  size_t wrong = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[offset + i] != expected[i] && ++wrong <= 3) {
      ADD_FAILURE() << what << ": element " << i << " is " << got[offset + i] << ", not "
                    << expected[i];
    }
  }
  EXPECT_EQ(wrong, 0u) << what << " of " << expected.size();
}

inline Values inputs(int rank, size_t count, size_t from = 0) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(input_value(rank, from + i));
  return values;
}
inline Values sums(int n, size_t count, size_t from = 0) {
  Values values(count, 0.0f);
  for (int p = 0; p < n; ++p) {
    for (size_t i = 0; i < count; ++i) values[i] += static_cast<float>(input_value(p, from + i));
  }
  return values;
}

inline void check_all_reduce(const Bench& b, size_t count, How how) {
  const Values send = inputs(b.r, count);
  Values recv = how == How::kInPlace ? send : Values(count, -1.0f);
  const float* from = how == How::kInPlace ? recv.data() : send.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_all_reduce(b.comm, from, recv.data(), count, WEIR_FLOAT32, WEIR_SUM, q);
  });
  expect_values(recv, 0, sums(b.n, count), "all_reduce");
}

inline void check_reduce(const Bench& b, size_t count, How how, int root) {
  const Values send = inputs(b.r, count);
  Values recv = how == How::kInPlace ? send : Values(count, -1.0f);
  const float* from = how == How::kInPlace ? recv.data() : send.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_reduce(b.comm, from, b.r == root ? recv.data() : nullptr, count, WEIR_FLOAT32,
                       WEIR_SUM, root, q);
  });
  if (b.r == root) expect_values(recv, 0, sums(b.n, count), "reduce");
}

inline void check_broadcast(const Bench& b, size_t count, How how, int root) {
  const Values send = inputs(root, count);
  Values recv(count, -1.0f);
  if (b.r == root && how == How::kInPlace) recv = send;
  const float* from = b.r != root ? nullptr : how == How::kInPlace ? recv.data() : send.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_broadcast(b.comm, from, recv.data(), count, WEIR_FLOAT32, root, q);
  });
  expect_values(recv, 0, send, "broadcast");
}

inline void check_reduce_scatter(const Bench& b, size_t count, How how) {
  const size_t n = static_cast<size_t>(b.n);
  Values send = inputs(b.r, count * n);
  Values recv(count, -1.0f);
  float* to = how == How::kInPlace ? send.data() + count * static_cast<size_t>(b.r) : recv.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_reduce_scatter(b.comm, send.data(), to, count, WEIR_FLOAT32, WEIR_SUM, q);
  });
  if (count > 0) std::memmove(recv.data(), to, count * sizeof(float));
  expect_values(recv, 0, sums(b.n, count, count * static_cast<size_t>(b.r)), "reduce_scatter");
}

inline void check_all_gather(const Bench& b, size_t count, How how) {
  const size_t n = static_cast<size_t>(b.n);
  const Values send = inputs(b.r, count);
  Values recv(count * n, -1.0f);
  const float* from = send.data();
  if (how == How::kInPlace && count > 0) {
    float* place = recv.data() + count * static_cast<size_t>(b.r);
    std::memcpy(place, send.data(), count * sizeof(float));
    from = place;
  }
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_all_gather(b.comm, from, recv.data(), count, WEIR_FLOAT32, q);
  });
  for (int p = 0; p < b.n; ++p) {
    expect_values(recv, count * static_cast<size_t>(p), inputs(p, count), "all_gather");
  }
}

inline void check_all_to_all(const Bench& b, size_t count, How how) {
  const size_t n = static_cast<size_t>(b.n);
  Values send = inputs(b.r, count * n);
  Values recv(count * n, -1.0f);
  if (how == How::kInPlace) recv = send;
  const float* from = how == How::kInPlace ? recv.data() : send.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_all_to_all(b.comm, from, recv.data(), count, WEIR_FLOAT32, q);
  });
  for (int p = 0; p < b.n; ++p) {
    expect_values(recv, count * static_cast<size_t>(p),
                  inputs(p, count, count * static_cast<size_t>(b.r)), "all_to_all");
  }
}

inline void check_gather(const Bench& b, size_t count, How how, int root) {
  const size_t n = static_cast<size_t>(b.n);
  const Values send = inputs(b.r, count);
  Values recv(b.r == root ? count * n : 0, -1.0f);
  const float* from = send.data();
  if (how == How::kInPlace && b.r == root && count > 0) {
    float* place = recv.data() + count * static_cast<size_t>(root);
    std::memcpy(place, send.data(), count * sizeof(float));
    from = place;
  }
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_gather(b.comm, from, b.r == root ? recv.data() : nullptr, count, WEIR_FLOAT32, root,
                       q);
  });
  if (b.r != root) return;
  for (int p = 0; p < b.n; ++p) {
    expect_values(recv, count * static_cast<size_t>(p), inputs(p, count), "gather");
  }
}

inline void check_scatter(const Bench& b, size_t count, How how, int root) {
  const size_t n = static_cast<size_t>(b.n);
  Values send = inputs(root, b.r == root ? count * n : 0);
  Values recv(count, -1.0f);
  float* to = how == How::kInPlace && b.r == root ? send.data() + count * static_cast<size_t>(root)
                                                  : recv.data();
  perform(b.comm, how, [&](weir_request_t* q) {
    return weir_scatter(b.comm, b.r == root ? send.data() : nullptr, to, count, WEIR_FLOAT32, root,
                        q);
  });
  if (to != recv.data() && count > 0) std::memcpy(recv.data(), to, count * sizeof(float));
  expect_values(recv, 0, inputs(root, count, count * static_cast<size_t>(b.r)), "scatter");
}

inline void check_uneven(const Bench& b, size_t unit, How how) {
  const size_t n = static_cast<size_t>(b.n);
  std::vector<size_t> counts(n);
  std::vector<size_t> begins(n);
  size_t all = 0;
  for (size_t p = 0; p < n; ++p) {
    counts[p] = p % 3 == 1 ? 0 : unit * (p + 1) + p;
    begins[p] = all;
    all += counts[p];
  }
  const auto r = static_cast<size_t>(b.r);
  {
    const Values send = inputs(b.r, all);
    Values recv(counts[r], -1.0f);
    perform(b.comm, how, [&](weir_request_t* q) {
      return weir_reduce_scatter_v(b.comm, send.data(), recv.data(), counts.data(), WEIR_FLOAT32,
                                   WEIR_SUM, q);
    });
    expect_values(recv, 0, sums(b.n, counts[r], begins[r]), "reduce_scatter_v");
  }
  {
    // Blocks lie in reverse order with a gap of one element between them.
    std::vector<size_t> displacements(n);
    size_t at = 0;
    for (size_t p = n; p-- > 0;) {
      displacements[p] = at;
      at += counts[p] + 1;
    }
    const Values send = inputs(b.r, counts[r]);
    Values recv(at, -1.0f);
    perform(b.comm, how, [&](weir_request_t* q) {
      return weir_all_gather_v(b.comm, send.data(), recv.data(), counts.data(),
                               displacements.data(), WEIR_FLOAT32, q);
    });
    for (size_t p = 0; p < n; ++p) {
      expect_values(recv, displacements[p], inputs(static_cast<int>(p), counts[p]), "all_gather_v");
      EXPECT_EQ(recv[displacements[p] + counts[p]], -1.0f) << "the gap was written";
    }
  }
  {
    // Rank a sends unit * ((a + 2 b) % 4) elements to rank b.
    auto amount = [&](size_t a, size_t c) { return unit * ((a + 2 * c) % 4); };
    std::vector<size_t> to(n), from(n);
    size_t send_all = 0, recv_all = 0;
    for (size_t p = 0; p < n; ++p) {
      to[p] = amount(r, p);
      from[p] = amount(p, r);
      send_all += to[p];
      recv_all += from[p];
    }
    Values send(send_all);
    Values recv(recv_all, -1.0f);
    size_t at = 0;
    for (size_t p = 0; p < n; ++p) {
      const Values block = inputs(static_cast<int>(r * n + p), to[p]);
      std::copy(block.begin(), block.end(), send.begin() + static_cast<std::ptrdiff_t>(at));
      at += to[p];
    }
    perform(b.comm, how, [&](weir_request_t* q) {
      return weir_all_to_all_v(b.comm, send.data(), to.data(), nullptr, recv.data(), from.data(),
                               nullptr, WEIR_FLOAT32, q);
    });
    at = 0;
    for (size_t p = 0; p < n; ++p) {
      expect_values(recv, at, inputs(static_cast<int>(p * n + r), from[p]), "all_to_all_v");
      at += from[p];
    }
  }
}

// Every collective at one size.
inline void check_every_collective(weir_comm_t comm, size_t count) {
  const Bench b(comm);
  for (const How how : {How::kOutOfPlace, How::kInPlace, How::kNonblocking}) {
    check_all_reduce(b, count, how);
    check_reduce_scatter(b, count, how);
    check_all_gather(b, count, how);
    check_all_to_all(b, count, how);
    for (const int root : {0, b.n - 1, b.n / 2}) {
      check_broadcast(b, count, how, root);
      check_reduce(b, count, how, root);
      check_gather(b, count, how, root);
      check_scatter(b, count, how, root);
    }
    if (how != How::kInPlace) check_uneven(b, count, how);
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  }
}

}  // namespace weir::test
