// SPDX-License-Identifier: Apache-2.0
// The kernels of the library: the reductions, one for each data type (reduce_arguments.h), the one
// that copies from several peers at once (copy_arguments.h), and the one that moves messages
// (message_arguments.h).
#include "cuda/kernels/copy_arguments.h"
#include "cuda/kernels/message_loop.h"
#include "cuda/kernels/paired_instructions.h"
#include "cuda/kernels/reduce_loop.h"

using namespace weir::kernels;  // NOLINT: this file is their interface

#define WEIR_REDUCE(name, ...)                                                         \
  extern "C" __global__ void __launch_bounds__(kBlockThreads)                          \
      weir_reduce_##name(const __grid_constant__ ReduceArguments arguments) {          \
    reduce<__VA_ARGS__>(arguments, uint64_t{blockIdx.x} * kBlockThreads + threadIdx.x, \
                        uint64_t{gridDim.x} * kBlockThreads);                          \
  }

WEIR_REDUCE(int8, IntegerMath<int8_t, uint8_t>)
WEIR_REDUCE(uint8, IntegerMath<uint8_t, uint8_t>)
WEIR_REDUCE(int32, IntegerMath<int32_t, uint32_t>)
WEIR_REDUCE(uint32, IntegerMath<uint32_t, uint32_t>)
WEIR_REDUCE(int64, IntegerMath<int64_t, uint64_t>)
WEIR_REDUCE(uint64, IntegerMath<uint64_t, uint64_t>)
WEIR_REDUCE(float16, DeviceFloat16)
WEIR_REDUCE(float32, Float<float>)
WEIR_REDUCE(float64, Float<double>)
WEIR_REDUCE(bfloat16, DeviceBfloat16)
WEIR_REDUCE(float8e4m3, DeviceFloat8E4M3)
WEIR_REDUCE(float8e5m2, DeviceFloat8E5M2)

namespace {

// By all threads of a block, as many bytes at a time as the addresses allow. What a peer has
// written is not looked for in the caches of this processor.
template <class Word>
__device__ __forceinline__ void copy_words(char* to, const char* from, uint64_t bytes) {
  const auto* const words = reinterpret_cast<const Word*>(from);
  auto* const target = reinterpret_cast<Word*>(to);
  const uint64_t count = bytes / sizeof(Word);
  constexpr uint64_t kAtOnce = 4;
  uint64_t i = threadIdx.x;
  for (; i + (kAtOnce - 1) * kCopyThreads < count; i += kAtOnce * kCopyThreads) {
    Word some[kAtOnce];
#pragma unroll
    for (uint64_t k = 0; k < kAtOnce; ++k) some[k] = __ldcg(words + i + k * kCopyThreads);
#pragma unroll
    for (uint64_t k = 0; k < kAtOnce; ++k) target[i + k * kCopyThreads] = some[k];
  }
  for (; i < count; i += kCopyThreads) target[i] = __ldcg(words + i);
  for (uint64_t k = count * sizeof(Word) + threadIdx.x; k < bytes; k += kCopyThreads) {
    to[k] = __ldcg(from + k);
  }
}

__device__ __forceinline__ void copy_piece(const CopyPiece& piece) {
  const auto addresses =
      reinterpret_cast<uintptr_t>(piece.to) | reinterpret_cast<uintptr_t>(piece.from);
  if (addresses % sizeof(uint4) == 0) {
    copy_words<uint4>(piece.to, piece.from, piece.bytes);
  } else if (addresses % sizeof(uint32_t) == 0) {
    copy_words<uint32_t>(piece.to, piece.from, piece.bytes);
  } else {
    copy_words<char>(piece.to, piece.from, piece.bytes);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCopyThreads)
    weir_copies(const __grid_constant__ CopyArguments arguments) {
  copy_piece(share_of_block(arguments, blockIdx.x, gridDim.x));
}

extern "C" __global__ void __launch_bounds__(kMessageThreads)
    weir_messages(const __grid_constant__ MessageArguments arguments) {
  __shared__ MessageTrack tracks[kMessageTracksMax];
  __shared__ CopyPiece piece;
  __shared__ MessageStep step;
  __shared__ bool stopped;
  const bool leads = threadIdx.x == 0;
  const uint32_t all = track_count(arguments);
  uint32_t count = 0;
  uint32_t left = 0;
  for (uint32_t i = blockIdx.x; i < all; i += gridDim.x) ++count;
  if (leads) stopped = load_counter(arguments.stop) != 0;
  __syncthreads();
  if (stopped) return;
  for (uint32_t i = threadIdx.x; i < count; i += kMessageThreads) {
    tracks[i] = begin_track(arguments, blockIdx.x + i * gridDim.x);
  }
  __syncthreads();
  for (uint32_t i = 0; i < count; ++i) left += tracks[i].ended == 0;
  while (left > 0) {
    bool any = false;
    for (uint32_t i = 0; i < count; ++i) {
      __syncthreads();  // the track, and what was read of the step before
      if (tracks[i].ended != 0) continue;
      if (leads) step = look(arguments, tracks[i], &piece);
      __syncthreads();
      if (step != MessageStep::kMove) continue;
      any = true;
      copy_piece(piece);
      __syncthreads();
      if (leads) {
        __threadfence_system();
        moved(arguments, piece, &tracks[i]);
      }
      __syncthreads();
      left -= tracks[i].ended;
    }
    if (any) continue;
    if (leads) {
      stopped = load_counter(arguments.stop) != 0;
      __nanosleep(100);
    }
    __syncthreads();
    if (stopped) return;
  }
}
