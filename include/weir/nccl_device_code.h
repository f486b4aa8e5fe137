/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_NCCL_DEVICE_CODE_H_
#define WEIR_NCCL_DEVICE_CODE_H_

/*
 * nccl_device_code.h: the names that kernels of nccl-tests and of NCCL's examples use of NCCL's
 * device API, for nvcc. They exist so that such a program compiles (weir/nccl_device.h says why);
 * whatever would communicate ends its kernel with a message and a trap. To be included through
 * weir/nccl_device.h.
 */

#ifndef WEIR_NCCL_DEVICE_H_
#error "include <nccl_device.h>"
#endif

#include <stdio.h>

#include <cuda/atomic>

#define WEIR_NCCL_NO_DEVICE_CODE                                                     \
  "Weir has no device-side communicators: this kernel compiles, and traps where it " \
  "communicates. Compile it against NVIDIA's nccl_device.h"
#define WEIR_NCCL_TRAPS [[deprecated(WEIR_NCCL_NO_DEVICE_CODE)]]
#define WEIR_NCCL_DEVICE __device__ inline

namespace weir_nccl_device {

WEIR_NCCL_DEVICE void trap(const char* name) {
  printf("%s: %s\n", name, WEIR_NCCL_NO_DEVICE_CODE);
  __trap();
}

template <typename T>
struct No {
  static constexpr bool value = false;
};

}  // namespace weir_nccl_device

/* ---- Threads that work together: these do what NCCL's do ------------------------------------- */

struct ncclCoopThread {
  WEIR_NCCL_DEVICE int thread_rank() const { return 0; }
  WEIR_NCCL_DEVICE int size() const { return 1; }
  WEIR_NCCL_DEVICE int num_threads() const { return 1; }
  WEIR_NCCL_DEVICE void sync() {}
};

struct ncclCoopWarp {
  WEIR_NCCL_DEVICE int thread_rank() const { return static_cast<int>(threadIdx.x % 32); }
  WEIR_NCCL_DEVICE int size() const { return 32; }
  WEIR_NCCL_DEVICE int num_threads() const { return 32; }
  WEIR_NCCL_DEVICE void sync() { __syncwarp(); }
};

struct ncclCoopCta {
  WEIR_NCCL_DEVICE int thread_rank() const {
    return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
  }
  WEIR_NCCL_DEVICE int size() const {
    return static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
  }
  WEIR_NCCL_DEVICE int num_threads() const { return size(); }
  WEIR_NCCL_DEVICE void sync() { __syncthreads(); }
};

/* ---- Teams and windows ---------------------------------------------------------------------- */

struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};

WEIR_NCCL_DEVICE ncclTeam ncclTeamWorld(const ncclDevComm& comm) {
  return {comm.nRanks, comm.rank, 1};
}
WEIR_NCCL_DEVICE ncclTeam ncclTeamLsa(const ncclDevComm& comm) {
  return {comm.lsaSize, comm.lsaRank, 1};
}
WEIR_NCCL_DEVICE ncclTeam ncclTeamRail(const ncclDevComm& comm) {
  return {comm.nRanks / comm.lsaSize, comm.rank / comm.lsaSize, comm.lsaSize};
}
WEIR_NCCL_DEVICE int ncclTeamRankToWorld(const ncclDevComm& comm, ncclTeam team, int rank) {
  return comm.rank + (rank - team.rank) * team.stride;
}
WEIR_NCCL_DEVICE int ncclTeamRankToLsa(const ncclDevComm& comm, ncclTeam team, int rank) {
  return comm.lsaRank + (rank - team.rank) * team.stride;
}

WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetLocalPointer(ncclWindow_t, size_t) {
  weir_nccl_device::trap("ncclGetLocalPointer");
  return nullptr;
}
WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetLsaPointer(ncclWindow_t, size_t, int) {
  weir_nccl_device::trap("ncclGetLsaPointer");
  return nullptr;
}
WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetPeerPointer(ncclWindow_t, size_t, int) {
  weir_nccl_device::trap("ncclGetPeerPointer");
  return nullptr;
}
WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetPeerPointer(ncclWindow_t, size_t, ncclTeam, int) {
  weir_nccl_device::trap("ncclGetPeerPointer");
  return nullptr;
}
WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetMultimemPointer(ncclWindow_t, size_t,
                                                              ncclMultimemHandle) {
  weir_nccl_device::trap("ncclGetMultimemPointer");
  return nullptr;
}
WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE void* ncclGetLsaMultimemPointer(ncclWindow_t, size_t,
                                                                 const ncclDevComm&) {
  weir_nccl_device::trap("ncclGetLsaMultimemPointer");
  return nullptr;
}

/* ---- Sessions ------------------------------------------------------------------------------- */

enum class ncclGinFenceLevel : unsigned { None = 0, Relaxed = 0, Put = 1, Get = 2 };

struct ncclGin_None {};
struct ncclGin_SignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_StrongSignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_WeakSignalInc {
  ncclGinSignal_t signal;
};
struct ncclGin_SignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_StrongSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_WeakSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_CounterInc {
  ncclGinCounter_t counter;
};

/* Whatever a session is asked for, with whatever arguments, ends the kernel. */
struct ncclGin {
  WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE ncclGin(const ncclDevComm&, int) {
    weir_nccl_device::trap("ncclGin");
  }
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void put(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void putValue(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void get(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void signal(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void flush(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void waitSignal(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void waitCounter(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE uint64_t readSignal(Arguments...) const {
    return 0;
  }
  template <typename... Arguments>
  WEIR_NCCL_DEVICE uint64_t readCounter(Arguments...) const {
    return 0;
  }
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void resetSignal(Arguments...) const {}
  template <typename... Arguments>
  WEIR_NCCL_DEVICE void resetCounter(Arguments...) const {}
};

template <typename Coop>
struct ncclLsaBarrierSession {
  template <typename... Arguments>
  WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE ncclLsaBarrierSession(Coop, const ncclDevComm&, Arguments...) {
    weir_nccl_device::trap("ncclLsaBarrierSession");
  }
  WEIR_NCCL_DEVICE void arrive(Coop, cuda::memory_order) {}
  WEIR_NCCL_DEVICE void wait(Coop, cuda::memory_order) {}
  WEIR_NCCL_DEVICE void sync(Coop, cuda::memory_order) {}
};

template <typename Coop>
struct ncclGinBarrierSession {
  template <typename... Arguments>
  WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE ncclGinBarrierSession(Coop, const ncclGin&, Arguments...) {
    weir_nccl_device::trap("ncclGinBarrierSession");
  }
  WEIR_NCCL_DEVICE void sync(Coop, cuda::memory_order, ncclGinFenceLevel) {}
};

template <typename Coop>
struct ncclBarrierSession {
  template <typename... Arguments>
  WEIR_NCCL_TRAPS WEIR_NCCL_DEVICE ncclBarrierSession(Coop, Arguments...) {
    weir_nccl_device::trap("ncclBarrierSession");
  }
  WEIR_NCCL_DEVICE ncclLsaBarrierSession<Coop>& lsaBarrier() {
    weir_nccl_device::trap("ncclBarrierSession::lsaBarrier");
    return *static_cast<ncclLsaBarrierSession<Coop>*>(nullptr);
  }
  WEIR_NCCL_DEVICE ncclGinBarrierSession<Coop>& ginBarrier() {
    weir_nccl_device::trap("ncclBarrierSession::ginBarrier");
    return *static_cast<ncclGinBarrierSession<Coop>*>(nullptr);
  }
  WEIR_NCCL_DEVICE void sync(Coop, cuda::memory_order,
                             ncclGinFenceLevel = ncclGinFenceLevel::None) {}
};

/* ---- What does not compile ------------------------------------------------------------------ */

template <typename T>
struct ncclSymPtr {
  static_assert(weir_nccl_device::No<T>::value, "ncclSymPtr: " WEIR_NCCL_NO_DEVICE_CODE);
};
template <typename Coop>
struct ncclLLA2ASession {
  static_assert(weir_nccl_device::No<Coop>::value, "ncclLLA2ASession: " WEIR_NCCL_NO_DEVICE_CODE);
};
template <typename Coop>
struct ncclCftBarrierSession {
  static_assert(weir_nccl_device::No<Coop>::value,
                "ncclCftBarrierSession: " WEIR_NCCL_NO_DEVICE_CODE);
};

#endif /* WEIR_NCCL_DEVICE_CODE_H_ */
