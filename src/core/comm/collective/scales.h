// SPDX-License-Identifier: Apache-2.0
// Scales: the pre-multiplied sums of a communicator, as numbers from kFirst. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

class Scales {
 public:
  static constexpr int kFirst = 16;
  static constexpr size_t kCountMax = 4096;
  struct Scale {
    bool used = false;
    DataType type = DataType::kFloat32;
    unsigned char value[8] = {};
  };

  // `name`: of the communicator, for errors; outlives it.
  explicit Scales(const std::string& name) : name_(name) {}
  Scales(const Scales&) = delete;
  Scales& operator=(const Scales&) = delete;

  // Copies the factor at `scalar`. Gives the lowest number that is free; kNoMemory: there is none.
  Result<int> create(DataType type, const void* scalar);
  // Both fail with kInvalidArgument for a number that is not in use.
  Status destroy(int op);
  Result<Scale> find(int op) const;

 private:
  Status unknown(int op) const;
  bool is_used(int op) const;

  const std::string& name_;
  mutable std::mutex lock_;
  std::vector<Scale> scales_;
};

}  // namespace weir::comm
