// SPDX-License-Identifier: Apache-2.0
// PredictionMemo: the predictions that a process has made, so that a communicator whose ranks are
// placed as those of an earlier one does not pay for its choices again. Bounded. Thread-safe.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "core/cost/predict.h"

namespace weir::cost {

class PredictionMemo {
 public:
  // Of everything that a prediction depends on. nullopt: it depends on trees or programs that may
  // end before the process does.
  using Key = std::optional<XXH128_hash_t>;
  static Key key_of(const algo::Algorithm& algorithm, const Workload& work, const Table& table);

  // The one of the process.
  static PredictionMemo& of_process();

  struct Kept {
    double ns = 0;
    double bound_ns = 0;     // Prediction::bound_ns
    double expected_ns = 0;  // Prediction::expected_ns
    bool is_long = false;    // Prediction::is_long
  };
  std::optional<Kept> find(const XXH128_hash_t& key);
  void keep(const XXH128_hash_t& key, const Kept& made);

 private:
  static constexpr size_t kPredictionsMax = 16'384;
  struct Hash {
    size_t operator()(const XXH128_hash_t& key) const { return key.low64; }
  };
  struct Equal {
    bool operator()(const XXH128_hash_t& a, const XXH128_hash_t& b) const {
      return a.low64 == b.low64 && a.high64 == b.high64;
    }
  };

  std::mutex mutex_;
  std::unordered_map<XXH128_hash_t, Kept, Hash, Equal> kept_;
};

}  // namespace weir::cost
