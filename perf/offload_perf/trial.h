// SPDX-License-Identifier: Apache-2.0
// An optimizer with gradients and outputs as in the options, and its steps. The same options give
// the same parameters, wherever the state is. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <weir/offload.h>

#include "core/base/status.h"
#include "perf/offload_perf/offload_options.h"

namespace weir::perf {

class Trial {
 public:
  // Makes an optimizer with its initial parameters. No directories: state in memory.
  static Result<std::unique_ptr<Trial>> create(const OffloadOptions& options,
                                               const std::vector<std::string>& directories);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  // The report's seconds are measured here, from the call to the return, including the acceptance
  // of a held step.
  Status step(weir_step_report_t* report);
  // Whether the other trial's parameters are the same, bit for bit.
  Result<bool> has_parameters_of(Trial& other);

  std::string describe() const { return weir_optimizer_describe(optimizer_); }
  Result<uint64_t> memory_bytes() const;

 private:
  explicit Trial(const OffloadOptions& options) : options_(options) {}
  Status open(const std::vector<std::string>& directories);
  Status set_parameters();

  const OffloadOptions& options_;
  weir_optimizer_t optimizer_ = nullptr;
  bool on_drives_ = false;
  std::vector<unsigned char> gradient_;
  std::vector<unsigned char> output_;
};

}  // namespace weir::perf
