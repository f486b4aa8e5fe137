/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_HOSTCUDA_H_
#define WEIR_HOSTCUDA_H_

/*
 * hostcuda.h: kernels for programs that run on Weir's CUDA without a GPU (docs/hostcuda.md).
 *
 * What it is for. Weir's CUDA cannot run device code. A program, or a library that is preloaded
 * beside it, gives a host function for a kernel by the kernel's name; a launch of that kernel then
 * calls the function on the stream's thread, in stream order. A launch of any other kernel is
 * refused.
 *
 * libweir_hostcuda_kernels.so has host functions for some kernels of nccl-tests and PyTorch, which
 * are found without registration.
 *
 * The functions are in libweir_hostcuda.so. On a machine with a GPU there is no such library: look
 * for them with dlsym when one program is to run on both.
 *
 * Threads. All functions may be called from any thread.
 */

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WEIR_HOSTCUDA_API __attribute__((visibility("default")))
#else
#define WEIR_HOSTCUDA_API
#endif

/* One launch. `arguments[i]` points to a copy of the i-th argument, as it was at the launch. */
typedef struct {
  unsigned grid[3];
  unsigned block[3];
  size_t shared_bytes;
  int device;
  size_t argument_count;
  void* const* arguments;
} weir_hostcuda_launch;

/* The whole launch in one call; it may not call CUDA. */
typedef void (*weir_hostcuda_kernel)(const weir_hostcuda_launch* launch, void* context);

/*
 * Registers `kernel` for launches of the kernel called `name`: the compiler's name ("_Z3addPfi"),
 * or the name in the source with its scope and template arguments, as c++filt writes them ("add",
 * "sums::add", "(anonymous namespace)::scale<float>"). The text about a kernel that has no host
 * function gives both. `argument_bytes` has the size of each argument. `context` is passed to each
 * call of `kernel`. A second call with the same name replaces the first for later launches.
 * Returns 0, or 1 when an argument is NULL that must not be.
 */
WEIR_HOSTCUDA_API int weir_hostcuda_register_kernel(const char* name, weir_hostcuda_kernel kernel,
                                                    void* context, const size_t* argument_bytes,
                                                    size_t argument_count);

/* A host function for a kernel, as weir_hostcuda_register_kernel() takes it. */
typedef struct {
  weir_hostcuda_kernel kernel;
  void* context;
  const size_t* argument_bytes;
  size_t argument_count;
} weir_hostcuda_host_kernel;

/*
 * Fills `found` and returns 1 if it has a host function for the kernel called `name` in the source,
 * otherwise returns 0. It may not call CUDA or the functions of this header. What `found` points
 * to must stay valid.
 */
typedef int (*weir_hostcuda_finder)(const char* name, weir_hostcuda_host_kernel* found,
                                    void* context);

/*
 * Registers `finder` for kernels of which there are too many to name, such as the instances of a
 * template. It is asked once for each kernel that has no host function, in the order of
 * registration, and before the kernels that libweir_hostcuda_kernels.so has (docs/hostcuda.md).
 * Returns 0, or 1 when `finder` is NULL.
 */
WEIR_HOSTCUDA_API int weir_hostcuda_register_finder(weir_hostcuda_finder finder, void* context);

/*
 * Whether [address, address + bytes) may be read or, with `writes`, written: 0 when it begins in
 * memory that this CUDA knows and ends outside it, lies in mapped memory of which a part is missing
 * or not accessible, in memory of a device that has been freed, or where the process has nothing
 * mapped. 1 otherwise, also for other memory that CUDA does not know.
 */
WEIR_HOSTCUDA_API int weir_hostcuda_has_memory(const void* address, size_t bytes, int writes);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_HOSTCUDA_H_ */
