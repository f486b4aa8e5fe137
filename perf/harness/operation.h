// SPDX-License-Identifier: Apache-2.0
// The operation that a *_perf program measures: it defines how a size becomes counts, what the
// receive buffer must hold afterwards, and which call to make. The harness does everything else.
// Plain values and pure functions; thread-safe.
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
  // In place one buffer holds both: its size and the place of each in it. Where the library has no
  // form that replaces what is sent, they lie one after the other.
  size_t in_place_count = 0;
  size_t in_place_send_offset = 0;
  size_t in_place_recv_offset = 0;
  // The figures that the table shows, the same on every rank: the count argument and the bytes of
  // the whole operation (nccl-tests' convention: the larger of the total sent and the total
  // received by a rank).
  size_t table_count = 0;
  size_t table_bytes = 0;
};

// A range of the receive buffer and the source of its values.
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
  weir_request_t* request = nullptr;         // nullptr: the call returns when it is done
  weir_request_t* second_request = nullptr;  // set like `request`, for what is two operations
};

struct Operation {
  const char* program;  // "all_reduce_perf"
  const char* c_name;   // "weir_all_reduce", for error texts
  bool reduces = false;
  bool has_root = false;

  // `count_total`: elements that fit the requested bytes.
  Geometry (*geometry)(size_t count_total, size_t element_bytes, const Where& where);
  std::vector<ExpectedBlock> (*expected)(const Geometry& geometry, const Where& where);
  // The ratio of bus bandwidth to algorithm bandwidth.
  double (*bus_factor)(int rank_count);
  weir_result_t (*start)(const Call& call);
};

// Runs the whole program; returns the exit status: 0 right, 1 wrong values, 2 wrong usage, 3 an
// error of the library or the system.
int run_program(int argc, char** argv, const Operation& operation);

}  // namespace weir::perf
