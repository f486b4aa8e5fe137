// SPDX-License-Identifier: Apache-2.0
#include "api/reduction.h"

#include <fmt/format.h>

#include <cstring>

#include "api/handles.h"

namespace weir::api {

std::string set_reduction(weir_comm_t comm, weir_redop_t op, engine::Call& call) {
  switch (op) {
    case WEIR_SUM:
      call.fold = Fold::kSum;
      return {};
    case WEIR_PROD:
      call.fold = Fold::kProd;
      return {};
    case WEIR_MAX:
      call.fold = Fold::kMax;
      return {};
    case WEIR_MIN:
      call.fold = Fold::kMin;
      return {};
    case WEIR_AVG:
      call.fold = Fold::kSum;
      call.average = true;
      return {};
    default:
      break;
  }
  if (op < weir::comm::Scales::kFirst) return fmt::format("reduction {} is unknown", op);
  auto scale = comm->comm->scales().find(op);
  if (!scale.ok()) return scale.status().text();
  if (scale.value().type != call.type) {
    return fmt::format("the factor of reduction {} is a {}, the data are {}", op,
                       name_of(scale.value().type), name_of(call.type));
  }
  call.fold = Fold::kSum;
  call.scaled = true;
  std::memcpy(call.scale, scale.value().value, sizeof call.scale);
  return {};
}

}  // namespace weir::api
