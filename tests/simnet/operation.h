// SPDX-License-Identifier: Apache-2.0
// Operation: one thing that all ranks of a simulated communicator do together, a collective or a
// group of messages, with what each rank gives and must get. The model is serial and knows nothing
// of the library: every element of every input is a function of (operation, rank, index), and so is
// every element of every output. Values; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simnet/random.h"
#include "weir/weir.h"

namespace weir::simnet {

enum class Kind : uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kReduceScatterV,
  kAllGather,
  kAllGatherV,
  kAllToAll,
  kAllToAllV,
  kGather,
  kScatter,
  kBarrier,
  kMessages,  // a group of sends and receives
};
inline constexpr uint32_t kKindCount = 13;
const char* name_of(Kind kind);

struct Message {
  uint32_t from = 0;
  uint32_t to = 0;
  size_t count = 0;
};

struct Operation {
  Kind kind = Kind::kBarrier;
  int type = WEIR_UINT8;
  int fold = WEIR_SUM;
  uint32_t root = 0;
  size_t count = 0;
  std::vector<size_t> counts;         // v-variants
  std::vector<size_t> displacements;  // all_gather_v
  std::vector<Message> messages;
  bool in_place = false;
  bool nonblocking = false;
  uint64_t salt = 0;

  std::string describe() const;
};

struct OperationLimits {
  size_t elements_max = 3000;
  uint32_t rank_count = 2;
};

// Any operation that the library must be able to do.
Operation draw_operation(Random& random, const OperationLimits& limits);

// The memory of one rank for one operation, with fences around every buffer.
class Buffers {
 public:
  Buffers(const Operation& operation, uint32_t rank, uint32_t rank_count, Random& random);

  // Calls the library. With `requests` the call does not block, and adds what is to be waited for.
  weir_result_t call(weir_comm_t comm, std::vector<weir_request_t>* requests);
  // What differs from what must be there, or "". `complete`: the operation has ended well;
  // otherwise only what lies outside of the buffers must be as it was.
  std::string check(bool complete) const;

 private:
  struct Region {
    std::vector<unsigned char> memory, expected;
    size_t begin = 0, bytes = 0;
    void make(size_t bytes, size_t offset);
    unsigned char* data() { return memory.data() + begin; }
    unsigned char* wanted() { return expected.data() + begin; }
  };

  size_t element() const;
  uint32_t value(uint32_t rank, size_t index) const;
  uint32_t reduced(size_t index) const;
  void put_input(Region& region, size_t at, uint32_t rank, size_t index, size_t count);
  void expect_input(Region& region, size_t at, uint32_t rank, size_t index, size_t count);
  void expect_reduced(Region& region, size_t at, size_t index, size_t count);
  void fill(unsigned char* out, uint32_t rank, size_t index, size_t count) const;
  void make_collective(Random& random);
  void make_messages(Random& random);
  weir_result_t call_messages(weir_comm_t comm, std::vector<weir_request_t>* requests);

  const Operation& op_;
  uint32_t rank_;
  uint32_t n_;
  Region send_, recv_;
  std::vector<size_t> send_counts_, recv_counts_;  // all_to_all_v
  std::vector<Region> messages_;                   // of this rank, in the order of the operation
  std::vector<uint32_t> order_;                    // in which they are posted
};

}  // namespace weir::simnet
