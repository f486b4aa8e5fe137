// SPDX-License-Identifier: Apache-2.0
#include "offload/store/transfer_all.h"

#include "core/base/clock.h"

namespace weir::offload {

namespace {

constexpr uint64_t kCancelMs = 5000;  // for transfers that were asked to end

}  // namespace

Status BatchOutcome::first_error() const {
  WEIR_RETURN_IF_ERROR(status);
  for (const Status& one : of_transfer) WEIR_RETURN_IF_ERROR(one);
  return {};
}

BatchOutcome transfer_all(Disk& disk, std::span<Transfer> transfers, uint64_t timeout_ms) {
  BatchOutcome outcome;
  for (size_t i = 0; i < transfers.size(); ++i) transfers[i].tag = i;
  const Status unknown(Code::kAborted, "the transfer was not started");
  outcome.of_transfer.assign(transfers.size(), unknown);
  uint64_t deadline_ns = now_ns() + timeout_ms * 1'000'000u;
  size_t submitted = 0;
  size_t reaped = 0;
  std::vector<Completion> done;
  while (reaped < submitted || (submitted < transfers.size() && outcome.status.ok())) {
    if (submitted < transfers.size() && outcome.status.ok()) {
      const Result<uint32_t> taken = disk.submit(transfers.subspan(submitted));
      if (taken.ok()) {
        submitted += taken.value();
        if (taken.value() == 0 && submitted == reaped) {
          outcome.status = Status(Code::kInternal, "the disk takes no transfer");
        }
      } else {
        outcome.status = taken.status();
      }
    }
    if (reaped == submitted) continue;
    done.clear();
    const Status status = disk.reap(1, deadline_ns, &done);
    for (const Completion& completion : done) {
      outcome.of_transfer[completion.tag] = completion.status;
      ++reaped;
    }
    if (!status.ok() && done.empty()) {
      if (!outcome.status.ok()) {  // the second time, after cancel
        outcome.stuck = reaped < submitted;
        return outcome;
      }
      outcome.status = status;
      disk.cancel();
      deadline_ns = now_ns() + kCancelMs * 1'000'000u;
    }
  }
  return outcome;
}

}  // namespace weir::offload
