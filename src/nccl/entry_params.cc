// SPDX-License-Identifier: Apache-2.0
// Exported: reading parameters. They are those of the real library where one is behind this one.
#include "nccl/entry.h"

using weir::nccl::FunctionIndex;
using weir::nccl::table_without_comm;

ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key) {
  return table_without_comm(FunctionIndex::kParamBind).ParamBind(out, key);
}
WEIR_NCCL_TWIN(ParamBind);

ncclResult_t ncclParamGetI8(ncclParamHandle_t handle, int8_t* out) {
  return table_without_comm(FunctionIndex::kParamGetI8).ParamGetI8(handle, out);
}
WEIR_NCCL_TWIN(ParamGetI8);

ncclResult_t ncclParamGetI16(ncclParamHandle_t handle, int16_t* out) {
  return table_without_comm(FunctionIndex::kParamGetI16).ParamGetI16(handle, out);
}
WEIR_NCCL_TWIN(ParamGetI16);

ncclResult_t ncclParamGetI32(ncclParamHandle_t handle, int32_t* out) {
  return table_without_comm(FunctionIndex::kParamGetI32).ParamGetI32(handle, out);
}
WEIR_NCCL_TWIN(ParamGetI32);

ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, int64_t* out) {
  return table_without_comm(FunctionIndex::kParamGetI64).ParamGetI64(handle, out);
}
WEIR_NCCL_TWIN(ParamGetI64);

ncclResult_t ncclParamGetU8(ncclParamHandle_t handle, uint8_t* out) {
  return table_without_comm(FunctionIndex::kParamGetU8).ParamGetU8(handle, out);
}
WEIR_NCCL_TWIN(ParamGetU8);

ncclResult_t ncclParamGetU16(ncclParamHandle_t handle, uint16_t* out) {
  return table_without_comm(FunctionIndex::kParamGetU16).ParamGetU16(handle, out);
}
WEIR_NCCL_TWIN(ParamGetU16);

ncclResult_t ncclParamGetU32(ncclParamHandle_t handle, uint32_t* out) {
  return table_without_comm(FunctionIndex::kParamGetU32).ParamGetU32(handle, out);
}
WEIR_NCCL_TWIN(ParamGetU32);

ncclResult_t ncclParamGetU64(ncclParamHandle_t handle, uint64_t* out) {
  return table_without_comm(FunctionIndex::kParamGetU64).ParamGetU64(handle, out);
}
WEIR_NCCL_TWIN(ParamGetU64);

ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char** out) {
  return table_without_comm(FunctionIndex::kParamGetStr).ParamGetStr(handle, out);
}
WEIR_NCCL_TWIN(ParamGetStr);

ncclResult_t ncclParamGet(ncclParamHandle_t handle, void* out, int bytes_max, int* bytes) {
  return table_without_comm(FunctionIndex::kParamGet).ParamGet(handle, out, bytes_max, bytes);
}
WEIR_NCCL_TWIN(ParamGet);

ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* length) {
  return table_without_comm(FunctionIndex::kParamGetParameter)
      .ParamGetParameter(key, value, length);
}
WEIR_NCCL_TWIN(ParamGetParameter);

ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* length) {
  return table_without_comm(FunctionIndex::kParamGetAllParameterKeys)
      .ParamGetAllParameterKeys(table, length);
}
WEIR_NCCL_TWIN(ParamGetAllParameterKeys);

void ncclParamDumpAll() { return table_without_comm(FunctionIndex::kParamDumpAll).ParamDumpAll(); }
WEIR_NCCL_TWIN(ParamDumpAll);
