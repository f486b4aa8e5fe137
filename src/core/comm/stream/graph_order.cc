// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/graph_order.h"

namespace weir::comm {

Status GraphOrder::enter_graph(const cuda::Driver& driver, const char* function,
                               cuda::Stream stream, const std::shared_ptr<StreamEvent>& latest,
                               Kept* kept) {
  if (event_ == nullptr) {
    auto made = std::make_shared<StreamEvent>();
    WEIR_RETURN_IF_ERROR(StreamEvent::make(driver, function, made.get()));
    event_ = std::move(made);
  }
  kept->push_back(event_);
  WEIR_RETURN_IF_ERROR(event_->wait_at_launch(function, stream));
  // Calls from before the first capture.
  if (latest == nullptr) return Status();
  kept->push_back(latest);
  return latest->wait_at_launch(function, stream);
}

Status GraphOrder::leave_graph(const char* function, cuda::Stream stream) const {
  return event_->record_at_launch(function, stream);
}

Status GraphOrder::wait(const char* function, cuda::Stream stream) const {
  return event_ == nullptr ? Status() : event_->wait(function, stream);
}

Status GraphOrder::record(const char* function, cuda::Stream stream) const {
  return event_ == nullptr ? Status() : event_->record_again(function, stream);
}

}  // namespace weir::comm
