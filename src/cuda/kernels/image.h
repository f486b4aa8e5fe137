// SPDX-License-Identifier: Apache-2.0
// The library's kernels (kernels.cu) as CUDA's driver reads them: code for some architectures, and
// PTX for later ones. Thread-safe.
#pragma once

namespace weir::kernels {

// nullptr: this library was built without nvcc.
const void* image();

}  // namespace weir::kernels
