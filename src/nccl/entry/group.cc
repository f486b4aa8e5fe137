// SPDX-License-Identifier: Apache-2.0
// Exported: groups. Both libraries open and close every group, so that a group may mix
// communicators of both; each library holds its own part.
#include <utility>
#include <vector>

#include "core/base/per_thread.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/comm/config.h"
#include "nccl/entry/entry.h"

using weir::nccl::Backend;
using weir::nccl::backend;
using weir::nccl::FunctionIndex;

namespace weir::nccl {

namespace {

struct Group {
  int depth = 0;
  uint64_t generation = 0;        // of the process that opened it
  std::vector<ncclComm_t*> made;  // to be handed out at its end
};

Group& my_group() { return PerThread<Group>::get(); }

void open_group() {
  if (my_group().generation != process_generation()) my_group() = Group();
  my_group().generation = process_generation();
  ++my_group().depth;
}

// The handle of the real library, which is the caller's from now on.
void exchange(ncclComm_t* out) {
  if (out == nullptr) return;
  const auto comm = find(*out);
  if (comm == nullptr || comm->real() == nullptr || !comm->config().blocking) return;
  const ncclComm_t handle = *out;
  *out = comm->release_real();
  keep_forwarded(*out, comm);
  (void)close_handle(handle);
}

// An error takes precedence over work in progress, and that over success.
ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
  const auto is_error = [](ncclResult_t it) { return it != ncclSuccess && it != ncclInProgress; };
  if (is_error(a) || b == ncclSuccess) return a;
  return is_error(b) || a == ncclSuccess ? b : a;
}

// Ends one level of the group, in both libraries. `end_real` and `end_own` make the calls.
template <typename EndReal, typename EndOwn>
ncclResult_t end_group(const Backend& it, EndReal end_real, EndOwn end_own) {
  if (my_group().generation != process_generation()) my_group() = Group();  // it was open at a fork
  if (my_group().depth == 0) return end_own();  // which reports that none is open
  std::vector<ncclComm_t*> made;
  if (--my_group().depth == 0) made = std::exchange(my_group().made, {});
  // The real library starts its part and returns; Weir waits for its own.
  const ncclResult_t real = it.real != nullptr ? end_real() : ncclSuccess;
  const ncclResult_t own = end_own();
  if (own == ncclSuccess) {
    for (ncclComm_t* out : made) exchange(out);
  }
  return worse(real, own);
}

}  // namespace

ncclResult_t hand_out(ncclResult_t result, ncclComm_t* out, int count) {
  if (result != ncclSuccess) return result;
  return guarded("the making of a communicator", [&]() -> Outcome {
    for (int i = 0; i < count; ++i) {
      if (my_group().depth > 0) {
        my_group().made.push_back(out + i);
      } else {
        exchange(out + i);
      }
    }
    return {};
  });
}

}  // namespace weir::nccl

ncclResult_t ncclGroupStart(void) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->GroupStart();
  if (it.real != nullptr) {
    if (const ncclResult_t result = it.real->GroupStart(); result != ncclSuccess) return result;
  }
  weir::nccl::open_group();
  return it.own->GroupStart();
}
WEIR_NCCL_TWIN(GroupStart);

ncclResult_t ncclGroupEnd(void) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->GroupEnd();
  return weir::nccl::end_group(
      it, [&] { return it.real->GroupEnd(); }, [&] { return it.own->GroupEnd(); });
}
WEIR_NCCL_TWIN(GroupEnd);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  const Backend& it = backend();
  if (WEIR_NCCL_PASSES_BY(it)) return it.real->GroupSimulateEnd(info);
  // The group stays open when the arguments are wrong or the function is missing.
  if (!weir::nccl::check_sim_info("ncclGroupSimulateEnd", info).ok()) {
    return it.own->GroupSimulateEnd(info);
  }
  if (it.real != nullptr && !it.library->has(FunctionIndex::kGroupSimulateEnd)) {
    return it.real->GroupSimulateEnd(info);
  }
  return weir::nccl::end_group(
      it, [&] { return it.real->GroupSimulateEnd(info); },
      [&] { return it.own->GroupSimulateEnd(it.real != nullptr ? nullptr : info); });
}
WEIR_NCCL_TWIN(GroupSimulateEnd);
