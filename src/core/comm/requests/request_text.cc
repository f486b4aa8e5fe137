// SPDX-License-Identifier: Apache-2.0
#include "core/comm/requests/request_text.h"

#include <fmt/format.h>

namespace weir::comm {

namespace {

std::string describe_one_sided(const Request& request, const std::string& name) {
  const OneSidedCall* call = request.one_sided.get();
  if (call == nullptr) return fmt::format("one-sided operation of rank {}", request.peer);
  const char* what = "";
  switch (call->kind) {
    case OneSidedKind::kPut:
      what = "put";
      break;
    case OneSidedKind::kGet:
      what = "get";
      break;
    case OneSidedKind::kPutSignal:
      what = "put_signal";
      break;
    case OneSidedKind::kSignal:
      return fmt::format("signal to rank {} on '{}'", request.peer, name);
    case OneSidedKind::kWaitSignal:
      return fmt::format("wait_signal at offset {} until {} (it is {}) on '{}'", call->offset,
                         call->value, load_word(call->window->own + call->offset), name);
    case OneSidedKind::kFetchAdd:
      return fmt::format("fetch_add at rank {} on '{}'", request.peer, name);
    case OneSidedKind::kCompareSwap:
      return fmt::format("compare_swap at rank {} on '{}'", request.peer, name);
    case OneSidedKind::kFlush:
      return fmt::format("flush on '{}'", name);
    case OneSidedKind::kRetire:
      return fmt::format("retirement of window {} on '{}'", call->window->number, name);
  }
  return fmt::format("{} of {} bytes at rank {} on '{}'", what, call->bytes, request.peer, name);
}

std::string describe_tagged(const Request& request, const std::string& name) {
  const TagCall& call = request.tag;
  const std::string tag =
      call.tag == WEIR_ANY_TAG ? std::string("any tag") : fmt::format("tag {}", call.tag);
  if (request.kind == RequestKind::kTagSend) {
    return fmt::format("send of {} bytes with {} to rank {} on '{}'", request.bytes, tag,
                       request.peer, name);
  }
  const std::string source =
      call.is_from_any ? std::string("any rank") : fmt::format("rank {}", request.peer);
  return fmt::format("receive of up to {} bytes with {} from {} on '{}'", request.bytes, tag,
                     source, name);
}

}  // namespace

std::string describe(const Request& request, const CommState& state) {
  const std::string& name = state.name;
  switch (request.kind) {
    case RequestKind::kCollective:
      return fmt::format("{} (operation {} of '{}')", engine::describe(request.call),
                         request.started ? request.sequence : state.context.sequence + 1, name);
    case RequestKind::kSend:
    case RequestKind::kRecv:
      return request.kind == RequestKind::kSend
                 ? fmt::format("send of {} bytes to rank {} on '{}'", request.bytes, request.peer,
                               name)
                 : fmt::format("receive of {} bytes from rank {} on '{}'", request.bytes,
                               request.peer, name);
    case RequestKind::kDevice:
      return request.device->is_all_to_all_v
                 ? fmt::format("all_to_all_v on memory of device {} on '{}'",
                               request.device->device, name)
                 : fmt::format("{} on memory of device {} on '{}'", engine::describe(request.call),
                               request.device->device, name);
    case RequestKind::kTagSend:
    case RequestKind::kTagRecv:
      return describe_tagged(request, name);
    case RequestKind::kOneSided:
      return describe_one_sided(request, name);
  }
  return name;
}

}  // namespace weir::comm
