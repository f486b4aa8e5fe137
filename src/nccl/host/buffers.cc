// SPDX-License-Identifier: Apache-2.0
#include "nccl/host/buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "cuda/driver.h"
#include "nccl/api/translate.h"
#include "nccl/host/slices.h"

namespace weir::nccl {

namespace {

bool knows(const cuda::Driver& driver, const void* buffer) {
  unsigned type = 0;
  int attributes[] = {cuda::kAttributeMemoryType};
  void* data[] = {&type};
  const auto address = static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(buffer));
  return buffer != nullptr &&
         driver.cuPointerGetAttributes(1, attributes, data, address) == cuda::kSuccess && type != 0;
}

Outcome check_buffer(const cuda::Driver& driver, const Operation& operation, const void* buffer,
                     size_t bytes, bool receives) {
  if (bytes == 0) return {};
  const std::string fault = driver.fault_of(buffer, bytes, receives);
  const bool there = fault.empty();
  const bool was_there = receives ? operation.cuda_has_recv : operation.cuda_has_send;
  if (there && (!was_there || knows(driver, buffer))) return {};
  const bool is_one = std::string_view(operation.function) == "ncclBcast";
  const char* name = is_one ? "buff" : receives ? "recvbuff" : "sendbuff";
  const Comm& comm = *operation.comm;
  return invalid_argument(fmt::format("{}, rank {} of {}: {} {} of {} bytes {}", operation.function,
                                      comm.rank(), comm.rank_count(), name, buffer, bytes,
                                      there ? "was CUDA's when the call was captured, and has been "
                                              "freed or unregistered"
                                            : fault));
}

Outcome check_scalar(const cuda::Driver& driver, const Operation& operation) {
  if (!operation.factor.has_value()) return {};
  const void* const scalar = operation.factor->device_scalar;
  if (scalar == nullptr) return {};
  const size_t bytes = element_bytes(operation.factor->type);
  const std::string fault = driver.fault_of(scalar, bytes, false);
  if (fault.empty()) return {};
  const Comm& comm = *operation.comm;
  return invalid_argument(
      fmt::format("{}, rank {} of {}: the scalar {} of {} bytes, with which "
                  "ncclRedOpCreatePreMulSum made the reduction, {}",
                  operation.function, comm.rank(), comm.rank_count(), scalar, bytes, fault));
}

}  // namespace

void note_buffers(Operation* operation) {
  const cuda::Driver* driver = cuda::known_driver();
  if (driver == nullptr || driver->has_memory == nullptr) return;
  operation->cuda_has_send = knows(*driver, operation->send);
  operation->cuda_has_recv = knows(*driver, operation->recv);
}

Outcome check_buffers(const Operation& operation) {
  const cuda::Driver* driver = cuda::known_driver();
  if (driver == nullptr || driver->has_memory == nullptr) return {};
  const Cut whole = cut(operation, 0);
  const size_t block_bytes = operation.count * whole.element_bytes;
  Outcome outcome =
      check_buffer(*driver, operation, operation.send, whole.send_blocks * block_bytes, false);
  if (!outcome.ok()) return outcome;
  outcome = check_buffer(*driver, operation, operation.recv, whole.recv_blocks * block_bytes, true);
  return outcome.ok() ? check_scalar(*driver, operation) : outcome;
}

Outcome check_overlap(const Operation& operation) {
  const Cut whole = cut(operation, 0);
  const size_t block_bytes = operation.count * whole.element_bytes;
  const size_t send_bytes = whole.send_blocks * block_bytes;
  const size_t recv_bytes = whole.recv_blocks * block_bytes;
  const auto send = reinterpret_cast<uintptr_t>(operation.send);
  const auto recv = reinterpret_cast<uintptr_t>(operation.recv);
  if (send_bytes == 0 || recv_bytes == 0) return {};
  if (send >= recv + recv_bytes || recv >= send + send_bytes) return {};
  const Comm& comm = *operation.comm;
  // In place, a buffer of one block is this rank's block of the other one.
  const bool has_root =
      operation.kind == OperationKind::kGather || operation.kind == OperationKind::kScatter;
  const auto mine = static_cast<size_t>(has_root ? operation.peer : comm.rank()) * block_bytes;
  const size_t in_recv = whole.send_blocks < whole.recv_blocks ? mine : 0;
  const size_t in_send = whole.recv_blocks < whole.send_blocks ? mine : 0;
  if (send + in_send == recv + in_recv) return {};
  return invalid_argument(fmt::format(
      "{}, rank {} of {}: sendbuff {} of {} bytes and recvbuff {} of {} bytes overlap by {} bytes, "
      "other than in place: count {} may be too large for a buffer; else use separate buffers, or "
      "in place {} as the {}",
      operation.function, comm.rank(), comm.rank_count(), operation.send, send_bytes,
      operation.recv, recv_bytes,
      std::min(send + send_bytes, recv + recv_bytes) - std::max(send, recv), operation.count,
      fmt::ptr(reinterpret_cast<void*>(
          in_send > 0 || whole.recv_blocks < whole.send_blocks ? send + in_send : recv + in_recv)),
      whole.recv_blocks < whole.send_blocks ? "recvbuff" : "sendbuff"));
}

}  // namespace weir::nccl
