// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/group.h"

#include "perf/harness/buffers.h"

namespace weir::perf {

Group::~Group() {
  if (!owned_) return;
  // release() was not called: other ranks may never come to it.
  weir_comm_abort(comm_);
  static_cast<void>(weir_comm_destroy(comm_));
}

std::string Group::make(weir_comm_t all, int rank, const Split& split, int process) {
  comm_ = all;
  if (split.rule != Split::Rule::kNone) {
    weir_comm_t mine = nullptr;
    const weir_result_t result = weir_comm_split(all, split.color(process), rank, nullptr, &mine);
    if (result != WEIR_OK) return error_text("weir_comm_split", result, all);
    comm_ = mine;
    owned_ = true;
  }
  weir_result_t result = weir_comm_rank(comm_, &rank_);
  if (result == WEIR_OK) result = weir_comm_size(comm_, &rank_count_);
  return result == WEIR_OK ? std::string() : error_text("weir_comm_size", result, comm_);
}

std::string Group::release() {
  if (!owned_) return {};
  owned_ = false;
  const weir_result_t result = weir_comm_destroy(comm_);
  return result == WEIR_OK ? std::string() : error_text("weir_comm_destroy", result, nullptr);
}

}  // namespace weir::perf
