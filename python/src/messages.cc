// SPDX-License-Identifier: Apache-2.0
// Messages, matched by tag.
#include <c10/util/Exception.h>

#include "backend.h"
#include "launch.h"
#include "tensors.h"

namespace weir::pytorch {

using c10d::OpType;

Backend::WorkPointer Backend::send(Tensors& tensors, int destination, int tag) {
  Launch launch(*this, OpType::SEND, "send", c10d::kUnsetTimeout, true);
  const at::Tensor& tensor = only_one(tensors, launch.name());
  check_rank(destination, launch.name());
  const Elements elements = elements_to_move(tensor.scalar_type());
  const at::Tensor flat = flat_input(tensor);
  launch.keep(flat);
  launch.call([&](weir_request_t* request) {
    return weir_tag_send(comm(), flat.const_data_ptr(), count_of(flat, elements), elements.type,
                         destination, tag, request);
  });
  return launch.finish(tensors, tensors, tensor.nbytes());
}

Backend::WorkPointer Backend::receive(OpType type, Tensors& tensors, int source, int tag) {
  Launch launch(*this, type, type == OpType::RECV ? "recv" : "recvAnySource", c10d::kUnsetTimeout,
                true);
  const at::Tensor& tensor = only_one(tensors, launch.name());
  const Elements elements = elements_to_move(tensor.scalar_type());
  const at::Tensor flat = is_flat(tensor) ? tensor : flat_like(tensor);
  void* data = flat.data_ptr();
  launch.keep(flat);
  weir_tag_info_t* info = launch.tag_info();
  launch.call([&](weir_request_t* request) {
    return weir_tag_recv(comm(), data, count_of(flat, elements), elements.type, source, tag, info,
                         request);
  });
  // `info` lives in the operation, which owns this action.
  launch.then([tensor, flat, info] {
    TORCH_CHECK_VALUE(info->bytes == flat.nbytes(), "recv: rank ", info->source, " sent ",
                      info->bytes, " bytes with tag ", info->tag, " to a tensor of ",
                      flat.nbytes());
    copy_back(tensor, flat);
  });
  return launch.finish(tensors, tensors, tensor.nbytes());
}

Backend::WorkPointer Backend::recv(Tensors& tensors, int source, int tag) {
  check_rank(source, "recv");
  return receive(OpType::RECV, tensors, source, tag);
}

Backend::WorkPointer Backend::recvAnysource(Tensors& tensors, int tag) {
  return receive(OpType::RECVANYSOURCE, tensors, WEIR_ANY_SOURCE, tag);
}

}  // namespace weir::pytorch
