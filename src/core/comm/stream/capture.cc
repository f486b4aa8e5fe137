// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/capture.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

namespace {

void on_graph_gone(void* argument) noexcept {
  const std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(argument));
  (*work)();
}

}  // namespace

Status capture_of(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                  Capture* capture) {
  int status = cuda::kCaptureNone;
  cuda::Result result = driver.cuStreamIsCapturing(stream, &status);
  if (result != cuda::kSuccess) {
    Status failed = cuda_failed(driver, function, "cuStreamIsCapturing", result);
    if (result == cuda::kErrorStreamCaptureImplicit) {
      capture->refusal = Capture::Refusal::kImplicit;
    }
    if (result != cuda::kErrorInvalidHandle && result != cuda::kErrorContextIsDestroyed) {
      return failed;
    }
    capture->refusal = Capture::Refusal::kNoStream;
    return Status(failed.code(), fmt::format("{}; stream {} was destroyed, or never was a stream",
                                             failed.text(), stream));
  }
  if (status == cuda::kCaptureNone) return {};
  if (status == cuda::kCaptureInvalidated) {
    return Status(
        Code::kInvalidUsage,
        fmt::format(
            "{}: the capture of the stream has failed already; end it with cudaStreamEndCapture",
            function));
  }
  if (!driver.can_capture()) {
    return Status(
        Code::kInvalidUsage,
        fmt::format(
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
  return cuda_failed(driver, function, "cuStreamGetCaptureInfo", result);
}

Status when_graph_is_gone(const cuda::Driver& driver, const char* function, const Capture& capture,
                          std::function<void()> work) {
  auto kept = std::make_unique<std::function<void()>>(std::move(work));
  cuda::UserObject object = nullptr;
  cuda::Result result =
      driver.cuUserObjectCreate(&object, kept.get(), on_graph_gone, 1, cuda::kNoDestructorSync);
  if (result != cuda::kSuccess) return cuda_failed(driver, function, "cuUserObjectCreate", result);
  auto* const work_of_object = kept.release();  // owned by the object
  result = driver.cuGraphRetainUserObject(capture.graph, object, 1, cuda::kObjectMove);
  if (result == cuda::kSuccess) return {};
  *work_of_object = [] {};
  (void)driver.cuUserObjectRelease(object, 1);
  return cuda_failed(driver, function, "cuGraphRetainUserObject", result);
}

}  // namespace weir::comm
