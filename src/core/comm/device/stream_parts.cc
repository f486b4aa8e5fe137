// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/stream_parts.h"

namespace weir::comm {
namespace {

constexpr const char* kRepeat = ". The call had no effect, and may be repeated";

}  // namespace

Status StreamParts::find_capture(const char* function, cuda::Stream stream,
                                 Capture* capture) const {
  using Refusal = Capture::Refusal;
  Status status = capture_of(memory->driver(), function, stream, capture);
  if (status.ok()) {
    const std::string unreached = memory->why_context_is_too_far();
    if (unreached.empty()) return status;
    return invalid_argument(std::string(function) + ": " + unreached + kRepeat);
  }
  if (capture->refusal == Refusal::kNone || memory->context_check().look()) return status;
  if (capture->refusal == Refusal::kImplicit) {
    return Status(Code::kInvalidUsage,
                  status.text() +
                      ": the default stream waits for other streams of the program, and one of "
                      "these is captured; end that capture first, or give weir_comm_set_stream a "
                      "stream made with cudaStreamNonBlocking" +
                      kRepeat);
  }
  return invalid_argument(status.text() +
                          ": give weir_comm_set_stream one that exists, and keep it until its "
                          "calls have ended" +
                          kRepeat);
}

}  // namespace weir::comm
