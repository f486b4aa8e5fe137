// SPDX-License-Identifier: Apache-2.0
// A transport for tests, `device_double`: tcp with messages on memory of devices, which are those
// of the stand-in for CUDA, whose memory is the host's. It holds its caller to what plugin.h asks:
// memory of a device comes by device_send and device_recv with that device's number, and no other.
#include <cstdint>
#include <cstdlib>

#include "cuda/driver_table.h"
#include "plugins/hook/hook.h"

namespace weir::plugins::tcp {
const weir_transport_functions_t* transport();
}

namespace weir::plugins::device_double {
namespace {

constexpr int kHost = -1;
constexpr int kUnknown = -2;

// The device that alone reaches `data`.
int device_of(const void* data) {
  const cuda::Driver* driver = cuda::find_driver(cuda::Look::kInUse);
  if (driver == nullptr) return kUnknown;
  unsigned type = 0;
  int device = 0;
  int attributes[] = {cuda::kAttributeMemoryType, cuda::kAttributeDeviceOrdinal};
  void* values[] = {&type, &device};
  const auto address = static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(data));
  if (driver->cuPointerGetAttributes == nullptr ||
      driver->cuPointerGetAttributes(2, attributes, values, address) != cuda::kSuccess) {
    return kHost;
  }
  return type == cuda::kMemoryDevice ? device : kHost;
}

class DeviceDouble final : public hook::Hook {
 public:
  static constexpr char kName[] = "device_double";
  using Hook::Hook;

  static void limit(const weir_transport_part_t*, weir_transport_caps_t* caps) {
    caps->bits |= WEIR_CAP_DEVICE_MEMORY;
    caps->memory_kinds |= WEIR_MEMORY_CUDA;
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    return device_of(data) >= 0 ? misplaced("send", data) : Hook::send(peer, lane, data, bytes, op);
  }
  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    return device_of(data) >= 0 ? misplaced("recv", data) : Hook::recv(peer, lane, data, bytes, op);
  }
  weir_result_t device_viable(uint32_t peer, int device, char* reason,
                              size_t reason_bytes) override {
    const char* refused = getenv("DEVICE_DOUBLE_REFUSES");
    if (refused == nullptr || device != atoi(refused)) return WEIR_OK;
    snprintf(reason, reason_bytes, "device_double was told to refuse device %d (rank %u)", device,
             peer);
    return WEIR_ERROR_UNSUPPORTED;
  }
  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    if (m.bytes != 0 && device_of(m.data) != m.device) {
      return misplaced(m.sending ? "device_send" : "device_recv", m.data);
    }
    return m.sending ? Hook::send(m.peer, m.lane, m.data, m.bytes, op)
                     : Hook::recv(m.peer, m.lane, m.data, m.bytes, op);
  }
  weir_result_t peer_leave(uint32_t peer) override { return leave_inner(peer); }

 private:
  weir_result_t misplaced(const char* call, const void* data) const {
    return fail(WEIR_ERROR_INTERNAL, "device_double: %s of memory of device %d", call,
                device_of(data));
  }
};

}  // namespace

const weir_transport_functions_t* transport() {
  static const weir_transport_functions_t functions = [] {
    weir_transport_functions_t f = *hook::make_table<DeviceDouble>(tcp::transport());
    f.parts = nullptr;
    f.name = "device_double";
    f.summary = "for tests: tcp, also on memory of devices of the stand-in for CUDA";
    return f;
  }();
  return &functions;
}

}  // namespace weir::plugins::device_double

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void);
extern "C" const weir_transport_functions_t* weir_transport_plugin(void) {
  return weir::plugins::device_double::transport();
}
