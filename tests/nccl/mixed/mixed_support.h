// SPDX-License-Identifier: Apache-2.0
// One communicator of ranks of two kinds: 'd' has memory of a device and a stream, 'h' has plain
// memory of the host, no context and no stream. What such ranks do in the tests, be they threads or
// processes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {

// A rank of one of the two kinds. Used by the thread that makes it.
class MixedRank {
 public:
  // Its communicator is destroyed by who made it.
  MixedRank(std::string_view kinds, int rank, ncclComm_t comm)
      : kinds_(kinds), rank_(rank), comm_(comm) {
    if (on_device()) stream_.emplace();
  }
  static bool is_on_device(std::string_view kinds, int rank) {
    return kinds[static_cast<size_t>(rank)] == 'd';
  }

  bool on_device() const { return is_on_device(kinds_, rank_); }
  bool on_device(int rank) const { return is_on_device(kinds_, rank); }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(kinds_.size()); }
  std::string kinds() const { return std::string(kinds_); }
  ncclComm_t comm() const { return comm_; }
  // Only of a rank on a device.
  const Stream& stream() const { return *stream_; }
  cudaStream_t nccl_stream() const { return on_device() ? stream_->nccl() : nullptr; }
  // A call of a rank on the host has ended when it returns.
  void synchronize() const {
    if (on_device()) stream_->synchronize();
  }
  void come_late() const { std::this_thread::sleep_for(std::chrono::milliseconds(40 * rank_)); }

 private:
  std::string_view kinds_;
  int rank_;
  ncclComm_t comm_;
  std::optional<Stream> stream_;
};

using MixedBody = std::function<void(const MixedRank&)>;

// Numbers in the memory that the rank has.
class MixedArray {
 public:
  MixedArray(const MixedRank& rank, size_t size)
      : rank_(rank), array_(rank.on_device() ? MemoryKind::kDevice : MemoryKind::kHost, size) {}
  int* data() const { return array_.data(); }
  size_t size() const { return array_.size(); }
  void set(const std::vector<int>& values) const {
    if (rank_.on_device()) return array_.set(values, rank_.stream());
    std::copy(values.begin(), values.end(), array_.data());
  }
  std::vector<int> get() const {
    if (rank_.on_device()) return array_.get(rank_.stream());
    return {array_.data(), array_.data() + array_.size()};
  }

 private:
  const MixedRank& rank_;
  Array array_;
};

// One rank's part of a collective, and what must come of it.
class MixedCall {
 public:
  MixedCall(const MixedRank& rank, Kind kind, size_t count, int root, int seed)
      : rank_(rank),
        kind_(kind),
        count_(count),
        root_(root),
        seed_(seed),
        send_(rank, send_size(kind, static_cast<size_t>(rank.size()), count)),
        recv_(rank, recv_size(kind, static_cast<size_t>(rank.size()), count)) {
    send_.set(numbers(send_.size(), rank.rank(), seed));
    recv_.set(std::vector<int>(recv_.size(), kUntouched));
  }
  void run() const {
    EXPECT_NCCL(
        call(kind_, send_.data(), recv_.data(), count_, root_, rank_.comm(), rank_.nccl_stream()));
  }
  void check() const {
    std::vector<std::vector<int>> all;
    for (int r = 0; r < rank_.size(); ++r) all.push_back(numbers(send_.size(), r, seed_));
    const auto wanted = expected(kind_, all, rank_.rank(), count_, root_);
    if (wanted.empty()) return;
    EXPECT_TRUE(recv_.get() == wanted)
        << "kind " << static_cast<int>(kind_) << ", count " << count_ << ", root " << root_
        << ", rank " << rank_.rank() << " of " << rank_.kinds();
  }

 private:
  const MixedRank& rank_;
  const Kind kind_;
  const size_t count_;
  const int root_;
  const int seed_;
  MixedArray send_;
  MixedArray recv_;
};

// ---- What ranks do ------------------------------------------------------------------------------

// From 8 bytes to several slices, of which some are under way at a time.
inline void every_collective(const MixedRank& rank) {
  int seed = 0;
  const auto try_one = [&](Kind kind, size_t count) {
    const MixedCall it(rank, kind, count, seed % rank.size(), seed);
    ++seed;
    it.run();
    rank.synchronize();
    it.check();
  };
  for (const Kind kind : kKinds) {
    for (const size_t count : {size_t{2}, size_t{1000}, size_t{30011}, size_t{300001}}) {
      try_one(kind, count);
    }
  }
  try_one(Kind::kAllReduce, 1500003);
}

// Everyone sends to everyone, in a group, and then in pairs without one.
inline void messages(const MixedRank& rank) {
  const int n = rank.size();
  for (const size_t count : {size_t{0}, size_t{2}, size_t{1000}, size_t{600001}}) {
    std::vector<std::unique_ptr<MixedArray>> out;
    std::vector<std::unique_ptr<MixedArray>> in;
    for (int peer = 0; peer < n; ++peer) {
      out.push_back(std::make_unique<MixedArray>(rank, count));
      in.push_back(std::make_unique<MixedArray>(rank, count));
      out.back()->set(numbers(count, rank.rank(), peer));
      in.back()->set(std::vector<int>(count, kUntouched));
    }
    EXPECT_NCCL(ncclGroupStart());
    for (int peer = 0; peer < n; ++peer) {
      const auto at = static_cast<size_t>(peer);
      EXPECT_NCCL(ncclSend(out[at]->data(), count, ncclInt, peer, rank.comm(), rank.nccl_stream()));
      EXPECT_NCCL(ncclRecv(in[at]->data(), count, ncclInt, peer, rank.comm(), rank.nccl_stream()));
    }
    EXPECT_NCCL(ncclGroupEnd());
    rank.synchronize();
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_TRUE(in[static_cast<size_t>(peer)]->get() == numbers(count, peer, rank.rank()))
          << count << " numbers of rank " << peer << " for rank " << rank.rank() << " of "
          << rank.kinds();
    }
    for (int from = 0; from < n; ++from) {
      const int to = (from + 1) % n;
      if (rank.rank() == from) {
        EXPECT_NCCL(ncclSend(out[0]->data(), count, ncclInt, to, rank.comm(), rank.nccl_stream()));
      } else if (rank.rank() == to) {
        EXPECT_NCCL(ncclRecv(in[0]->data(), count, ncclInt, from, rank.comm(), rank.nccl_stream()));
        rank.synchronize();
        EXPECT_TRUE(in[0]->get() == numbers(count, from, 0));
      }
    }
    rank.synchronize();
  }
}

// Ranks on devices put the collectives into groups, those on the host make them one by one, and
// everyone comes at another time.
inline void groups(const MixedRank& rank) {
  std::vector<std::unique_ptr<MixedCall>> calls;
  for (int i = 0; i < 24; ++i) {
    const size_t count = i % 5 == 0 ? 300001 : i % 3 == 0 ? 30011 : 90;
    calls.push_back(std::make_unique<MixedCall>(rank, kKinds[i % 8], count, i % rank.size(), i));
  }
  rank.come_late();
  for (size_t begin = 0; begin < calls.size(); begin += 8) {
    EXPECT_NCCL(rank.on_device() ? ncclGroupStart() : ncclSuccess);
    for (size_t i = begin; i < begin + 8; ++i) calls[i]->run();
    EXPECT_NCCL(rank.on_device() ? ncclGroupEnd() : ncclSuccess);
  }
  rank.synchronize();
  for (const auto& it : calls) it->check();
}

// Collectives and messages of one group.
inline void groups_of_both(const MixedRank& rank) {
  const int n = rank.size();
  const int to = (rank.rank() + 1) % n;
  const int from = (rank.rank() + n - 1) % n;
  for (const size_t count : {size_t{500}, size_t{400001}}) {
    const MixedCall sum(rank, Kind::kAllReduce, count, 0, 1);
    const MixedCall all(rank, Kind::kAllGather, count / 4, 0, 2);
    const MixedArray out(rank, count);
    const MixedArray in(rank, count);
    out.set(numbers(count, rank.rank(), 3));
    EXPECT_NCCL(ncclGroupStart());
    sum.run();
    EXPECT_NCCL(ncclSend(out.data(), count, ncclInt, to, rank.comm(), rank.nccl_stream()));
    EXPECT_NCCL(ncclRecv(in.data(), count, ncclInt, from, rank.comm(), rank.nccl_stream()));
    all.run();
    EXPECT_NCCL(ncclGroupEnd());
    rank.synchronize();
    sum.check();
    all.check();
    EXPECT_TRUE(in.get() == numbers(count, from, 3));
  }
}

// Ranks on devices are many calls ahead of their streams.
inline void far_ahead(const MixedRank& rank) {
  std::vector<std::unique_ptr<MixedCall>> calls;
  for (int i = 0; i < 120; ++i) {
    calls.push_back(
        std::make_unique<MixedCall>(rank, kKinds[i % 8], i % 10 == 0 ? 30011 : 70, i % 2, i));
  }
  if (!rank.on_device()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (const auto& it : calls) it->run();
  rank.synchronize();
  for (const auto& it : calls) it->check();
}

// A factor lies on the device of the rank, or is given by value.
inline void factors(const MixedRank& rank) {
  constexpr size_t kCount = 5000;
  const int value = rank.rank() + 2;
  const MixedArray factor(rank, 1);
  factor.set({value});
  ncclRedOp_t op = ncclSum;
  EXPECT_NCCL(ncclRedOpCreatePreMulSum(
      &op, factor.data(), ncclInt, rank.on_device() ? ncclScalarDevice : ncclScalarHostImmediate,
      rank.comm()));
  const MixedArray data(rank, kCount);
  data.set(numbers(kCount, rank.rank(), 5));
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, op, rank.comm(),
                            rank.nccl_stream()));
  rank.synchronize();
  EXPECT_NCCL(ncclRedOpDestroy(op, rank.comm()));
  std::vector<int> wanted(kCount);
  for (int r = 0; r < rank.size(); ++r) {
    const auto of_rank = numbers(kCount, r, 5);
    for (size_t i = 0; i < kCount; ++i) wanted[i] += of_rank[i] * (r + 2);
  }
  EXPECT_TRUE(data.get() == wanted);
}

// Those of one kind among themselves, and then all again.
inline void splits(const MixedRank& rank) {
  ncclComm_t mine = nullptr;
  EXPECT_NCCL(ncclCommSplit(rank.comm(), rank.on_device() ? 1 : 0, rank.rank(), &mine, nullptr));
  constexpr size_t kCount = 30011;
  const MixedArray data(rank, kCount);
  data.set(numbers(kCount, rank.rank(), 6));
  EXPECT_NCCL(
      ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, mine, rank.nccl_stream()));
  rank.synchronize();
  std::vector<int> wanted(kCount);
  for (int r = 0; r < rank.size(); ++r) {
    if (rank.on_device(r) != rank.on_device()) continue;
    const auto of_rank = numbers(kCount, r, 6);
    for (size_t i = 0; i < kCount; ++i) wanted[i] += of_rank[i];
  }
  EXPECT_TRUE(data.get() == wanted);
  EXPECT_NCCL(ncclCommDestroy(mine));
  const MixedCall all(rank, Kind::kAllReduce, kCount, 0, 7);
  all.run();
  rank.synchronize();
  all.check();
}

// Ranks that make different calls are told so, of both kinds.
inline void different_calls(const MixedRank& rank) {
  constexpr size_t kCount = 3001;
  const bool differs = rank.rank() == rank.size() - 1;
  const size_t count = kCount + (differs ? 1 : 0);
  const MixedArray data(rank, count);
  data.set(numbers(count, rank.rank(), 8));
  const ncclResult_t result = ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum,
                                            rank.comm(), rank.nccl_stream());
  rank.synchronize();
  EXPECT_EQ(rank.on_device() ? async_error(rank.comm()) : result, ncclInvalidUsage);
  const std::string text = ncclGetLastError(rank.comm());
  EXPECT_NE(text.find("count 3001)"), std::string::npos) << text;
  EXPECT_NE(text.find("count 3002)"), std::string::npos) << text;
}

}  // namespace weir::nccl::test
