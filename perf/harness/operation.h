// SPDX-License-Identifier: Apache-2.0
// What a *_perf program measures: one subclass per operation says how a size becomes counts, what
// the receive buffer must hold afterwards, and which call to make. Everything else is the harness.
// Objects are immutable; thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include <weir/weir.h>

#include "perf/harness/pattern.h"

namespace weir::perf {

// Counts in elements, of one rank.
struct Geometry {
  size_t send_count = 0;
  size_t recv_count = 0;  // 0: this rank receives nothing
  // In place one buffer holds both: its size and where each of them lies in it.
  size_t in_place_count = 0;
  size_t in_place_send_offset = 0;
  size_t in_place_recv_offset = 0;
  // What the table shows, the same on every rank: the count argument and the bytes of the whole
  // operation (nccl-tests' convention: the larger of the total sent and the total received by a
  // rank).
  size_t table_count = 0;
  size_t table_bytes = 0;
};

// A run of the receive buffer and where its values come from.
struct ExpectedBlock {
  size_t recv_index = 0;
  size_t count = 0;
  int source = Pattern::kReduced;  // a rank, or the reduction over all
  size_t source_index = 0;         // element in that rank's send buffer
};

struct Where {
  int rank = 0;
  int rank_count = 1;
  int root = 0;
};

struct Call {
  weir_comm_t comm = nullptr;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // Geometry::table_count
  size_t element_bytes = 0;
  weir_datatype_t type = WEIR_FLOAT32;
  weir_redop_t op = WEIR_SUM;
  Where where;
  weir_request_t* request = nullptr;
};

class Operation {
 public:
  virtual ~Operation() = default;

  virtual const char* program() const = 0;  // "all_reduce_perf"
  virtual const char* c_name() const = 0;   // "weir_all_reduce", for error texts
  virtual bool reduces() const { return false; }
  virtual bool has_root() const { return false; }
  virtual bool has_in_place() const { return true; }

  // `count_total`: elements that fit the requested bytes.
  virtual Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const = 0;
  virtual std::vector<ExpectedBlock> expected(const Geometry& geometry,
                                              const Where& where) const = 0;
  // Bus bandwidth over algorithm bandwidth.
  virtual double bus_factor(int rank_count) const = 0;
  virtual weir_result_t start(const Call& call) const = 0;
};

// The whole program; returns the exit status: 0 right, 1 wrong values, 2 wrong usage, 3 an error of
// the library or the system.
int run_program(int argc, char** argv, const Operation& operation);

}  // namespace weir::perf
