// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/capture.h"

#include <fmt/format.h>

namespace weir::nccl {

Outcome capture_of(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                   Capture* capture) {
  int status = cuda::kCaptureNone;
  cuda::Result result = driver.cuStreamIsCapturing(stream, &status);
  if (result != cuda::kSuccess) {
    Outcome outcome = cuda::failed(driver, function, "cuStreamIsCapturing", result);
    if (result == cuda::kErrorInvalidHandle || result == cuda::kErrorContextIsDestroyed) {
      outcome.text += fmt::format("; stream {} was destroyed, or never was a stream", stream);
    }
    return outcome;
  }
  if (status == cuda::kCaptureNone) return {};
  if (status == cuda::kCaptureInvalidated) {
    return invalid_usage(fmt::format(
        "{}: the capture of the stream has failed already; end it with cudaStreamEndCapture",
        function));
  }
  if (!driver.can_capture()) {
    return invalid_usage(fmt::format(
        "{}: the stream is captured, but this CUDA has no user objects of graphs (since 11.3)",
        function));
  }
  capture->active = true;
  result = driver.cuStreamGetCaptureInfo_v2 != nullptr
               ? driver.cuStreamGetCaptureInfo_v2(stream, &status, &capture->number,
                                                  &capture->graph, nullptr, nullptr)
               : driver.cuStreamGetCaptureInfo_v3(stream, &status, &capture->number,
                                                  &capture->graph, nullptr, nullptr, nullptr);
  if (result == cuda::kSuccess) return {};
  return cuda::failed(driver, function, "cuStreamGetCaptureInfo", result);
}

}  // namespace weir::nccl
