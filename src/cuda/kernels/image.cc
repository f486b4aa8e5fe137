// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/image.h"

#ifdef WEIR_KERNEL_IMAGE
asm(".pushsection .rodata\n"
    ".balign 16\n"
    ".hidden weir_kernel_image\n"
    ".globl weir_kernel_image\n"
    "weir_kernel_image:\n"
    ".incbin \"" WEIR_KERNEL_IMAGE
    "\"\n"
    ".popsection\n");
extern "C" __attribute__((visibility("hidden"))) const unsigned char weir_kernel_image[];
#endif

namespace weir::kernels {

const void* image() {
#ifdef WEIR_KERNEL_IMAGE
  return weir_kernel_image;
#else
  return nullptr;
#endif
}

}  // namespace weir::kernels
