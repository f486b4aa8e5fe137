// SPDX-License-Identifier: Apache-2.0
// One measurement of adam_perf: a step and the streaming loop of the same traffic, on the same
// memory, in turns. State is laid out and divided as in the optimizer: in chunks, each stepped by
// one thread. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/kernels/step_kernel.h"
#include "offload/kernels/worker_pool.h"
#include "offload/optimizer/placement.h"

namespace weir::perf {

struct ContestCase {
  std::string name;  // of the command line: "f32", "bf16", "idle", "half", "half8"
  offload::Method method = offload::Method::kAdamW;
  offload::StateFormat format = offload::StateFormat::kFloat32;
  DataType gradient_type = DataType::kFloat32;
  bool writes_copy = false;  // bf16 parameters of a f32 state, past the caches
  bool stochastic = false;
  bool unscales = false;  // the gradient's factor is not one
  bool idle = false;      // zero gradient, moments near 1e-40
};

struct Times {
  std::vector<double> seconds;  // one per round
  double best() const;
  double median() const;
};

struct ContestResult {
  double bytes_per_parameter = 0;
  Times step;
  Times loop;  // the better of the two below, by its best round
  bool loop_prefetches = false;
  // 1: the step takes as long as the loop. The second is the median of the ratios within a round,
  // which stays the same when a machine is faster in some rounds than in others.
  double ratio_of_bests() const;
  double median_ratio() const;
};

class Contest {
 public:
  // kNoMemory: for `elements`, a multiple of 64.
  static Result<std::unique_ptr<Contest>> create(const ContestCase& contest, uint64_t elements);
  ~Contest();
  Contest(const Contest&) = delete;
  Contest& operator=(const Contest&) = delete;

  ContestResult run(offload::WorkerPool& pool, uint32_t rounds);
  double huge_page_share() const;  // of the memory, as the kernel reports them

 private:
  Contest(const ContestCase& contest, offload::Placement placement);
  unsigned char* state(uint64_t chunk) const { return state_ + chunk * chunk_stride_bytes_; }
  Status allocate();
  void fill();
  void fill_chunk(const offload::StateChunk& chunk, unsigned char* state);
  void make_idle();
  double time_step(offload::WorkerPool& pool);
  double time_loop(offload::WorkerPool& pool, bool prefetch);

  const ContestCase case_;
  const offload::Placement placement_;
  const uint64_t elements_;
  uint64_t chunk_stride_bytes_ = 0;
  unsigned char* memory_ = nullptr;
  uint64_t memory_bytes_ = 0;
  unsigned char* state_ = nullptr;
  unsigned char* gradient_ = nullptr;
  unsigned char* copy_ = nullptr;       // of half formats
  unsigned char* parameter_ = nullptr;  // written past the caches
  uint64_t step_ = 0;
};

}  // namespace weir::perf
