// SPDX-License-Identifier: Apache-2.0
// Messages, matched by tag.
#include <c10/util/Exception.h>

#include <cstring>

#include "backend.h"
#include "launch.h"
#include "tensors.h"

namespace weir::pytorch {

using c10d::OpType;

namespace {

// A message may be shorter than the tensor, whose rest stays as it was. `flat` has received `bytes`
// for it.
void keep_rest(const at::Tensor& flat, const at::Tensor& tensor, size_t bytes) {
  const at::Tensor before = flat_input(tensor);
  std::memcpy(static_cast<char*>(flat.data_ptr()) + bytes,
              static_cast<const char*>(before.const_data_ptr()) + bytes, flat.nbytes() - bytes);
}

}  // namespace

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
  if (!flat.is_same(tensor)) {
    // `info` lives in the operation, which owns this action.
    launch.then([tensor, flat, info] {
      if (info->bytes < flat.nbytes()) keep_rest(flat, tensor, info->bytes);
      copy_back(tensor, flat);
    });
  }
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
