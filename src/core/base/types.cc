// SPDX-License-Identifier: Apache-2.0
#include "core/base/types.h"

namespace weir {

const char* name_of(DataType type) {
  switch (type) {
    case DataType::kInt8:
      return "int8";
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt32:
      return "int32";
    case DataType::kUint32:
      return "uint32";
    case DataType::kInt64:
      return "int64";
    case DataType::kUint64:
      return "uint64";
    case DataType::kFloat16:
      return "float16";
    case DataType::kFloat32:
      return "float32";
    case DataType::kFloat64:
      return "float64";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kFloat8E4M3:
      return "float8_e4m3";
    case DataType::kFloat8E5M2:
      return "float8_e5m2";
  }
  return "?";
}

const char* name_of(Fold fold) {
  switch (fold) {
    case Fold::kSum:
      return "sum";
    case Fold::kProd:
      return "prod";
    case Fold::kMax:
      return "max";
    case Fold::kMin:
      return "min";
  }
  return "?";
}

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kBarrier:
      return "barrier";
    case Collective::kSendRecv:
      return "send_recv";
  }
  return "?";
}

}  // namespace weir
