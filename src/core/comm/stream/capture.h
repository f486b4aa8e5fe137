// SPDX-License-Identifier: Apache-2.0
// Which capture a stream is part of, and what goes with its graph. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <functional>

#include "core/base/status.h"
#include "cuda/driver.h"

namespace weir::comm {

struct Capture {
  // Why CUDA does not say whether the stream is captured; nothing was done.
  enum class Refusal : uint8_t {
    kNone,
    kNoStream,  // CUDA knows no such stream
    kImplicit,  // a default stream, while a stream for which it waits is captured
  };
  Refusal refusal = Refusal::kNone;
  bool active = false;
  uint64_t number = 0;
  cuda::Graph graph = nullptr;
};

// An error if there is no such stream, or its capture has failed or cannot hold operations.
Status capture_of(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                  Capture* capture);

// `work` is called once the graph and all that was made from it is gone, by a thread of CUDA's: it
// may not call CUDA. After an error it is not called.
Status when_graph_is_gone(const cuda::Driver& driver, const char* function, const Capture& capture,
                          std::function<void()> work);

}  // namespace weir::comm
