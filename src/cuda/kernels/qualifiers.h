// SPDX-License-Identifier: Apache-2.0
// How functions are declared that nvcc compiles for devices and the host's compiler for tests and
// for Weir's stand-in.
#pragma once

#ifdef __CUDACC__
#define WEIR_KERNEL __device__ __forceinline__
#define WEIR_KERNEL_APART __device__ __noinline__  // long, and rarely called
#else
#define WEIR_KERNEL inline
#define WEIR_KERNEL_APART inline
#endif
