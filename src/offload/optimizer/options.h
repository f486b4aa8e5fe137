// SPDX-License-Identifier: Apache-2.0
// Options of an optimizer and the report of a step: the C++ side of weir/offload.h, which has the
// meaning of each field. Values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "offload/kernels/method.h"
#include "offload/kernels/state_format.h"
#include "offload/store/chunk_damage.h"
#include "offload/store/scrubber.h"

namespace weir::offload {

class Disk;

enum class SweepOrder : uint8_t {
  kFirstFirst = 0,
  kLastFirst = 1,
};
inline constexpr uint32_t kSweepOrderCount = 2;

struct ParameterGroup {
  std::string name;
  uint64_t element_count = 0;
  uint64_t first_element = 0;
  Method method = Method::kAdamW;
  StateFormat format = StateFormat::kFloat32;
  Hyper hyper;
};

inline constexpr uint64_t kDefaultScrubBytesPerS = uint64_t{32} << 20;

// Called with the bytes of state read so far and their total.
using VerifyProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

struct OptimizerOptions {
  std::string model = "model";
  uint32_t rank = 0;
  uint32_t rank_count = 1;
  std::vector<std::string> directories;
  uint64_t memory_bytes = 0;
  uint64_t chunk_bytes = 0;
  uint32_t thread_count = 0;
  uint32_t durable_every = 0;
  uint64_t seed = 0;
  uint64_t timeout_ms = 0;
  std::string trace_file;
  bool undo_in_memory = false;
  bool read_only = false;
  SweepOrder order = SweepOrder::kFirstFirst;
  std::vector<int> cores;
  bool sqpoll = false;
  bool iopoll = false;
  bool verify = false;  // open reads and checks everything at once
  VerifyProgress verify_progress;
  uint64_t scrub_bytes_per_s = kDefaultScrubBytesPerS;  // 0: none
  // A test's disk, which must outlive the optimizer. Otherwise the disk that the machine allows.
  Disk* disk = nullptr;
};

// The condition of a store; weir_store_report has the meaning of the fields.
struct StoreReport {
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t chunk_count = 0;
  uint64_t verified_chunk_count = 0;
  uint64_t verify_bytes = 0;
  double verify_seconds = 0;
  std::optional<Fallback> went_back;
  std::vector<std::string> mended;  // slot files that open has recreated or truncated
  ScrubReport scrub;
  ChunkDamage damage;  // of the committed state, found by reads other than the scrub's
};

struct StepOptions {
  double loss_scale = 1;
  double norm_max = 0;
  double sum_of_squares_of_scaled_gradients = -1;
  bool hold = false;
};

// Gradients that are infinite or NaN: how many, and the first of them.
struct NotFinite {
  uint64_t count = 0;
  uint32_t group = 0;    // where count > 0
  uint64_t element = 0;  // of the group
};

struct StepReport {
  uint64_t step = 0;
  bool skipped = false;
  bool committed = false;
  double norm = -1;
  uint64_t parameter_count = 0;
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  double seconds = 0;
  double disk_wait_seconds = 0;
  double compute_seconds = 0;
  double compute_hidden = 1;
  NotFinite not_finite;
};

}  // namespace weir::offload
