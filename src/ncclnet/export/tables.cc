// SPDX-License-Identifier: Apache-2.0
// The tables that NCCL finds, ncclNetPlugin_v8 to ncclNetPlugin_v12: each entry translates
// arguments and calls net.h. All versions come from the one template below.
#include <vector>

#include "ncclnet/abi.h"
#include "ncclnet/export/net.h"

namespace weir::ncclnet {
namespace {

template <int kVersion>
struct Entries {
  using Properties = ncclnet::Properties<kVersion>;

  static Result init_process(Logger log) {
    // NCCL may call again, with another log function.
    Context* context = nullptr;
    const Result result = net_init(&context, kUndefined, log);
    if (result != kSuccess) return result;
    if (process_context() != nullptr) return net_finalize(context);
    set_process_context(context);
    return kSuccess;
  }
  static Result init_9(Logger log) { return init_process(log); }
  static Result init_10(Logger log, ProfilerCallback) { return init_process(log); }
  static Result init_11(void** context, uint64_t, CommConfig* config, Logger log,
                        ProfilerCallback) {
    Context* made = nullptr;
    const Result result =
        net_init(&made, config != nullptr ? config->traffic_class : kUndefined, log);
    *context = made;
    return result;
  }

  static Result get_properties(int device, Properties* out) {
    ncclnet::Properties<12> full;
    const Result result = net_properties(device, &full);
    if (result != kSuccess) return result;
    *out = {};
    out->name = full.name;
    out->pci_path = full.pci_path;
    out->guid = full.guid;
    out->pointer_kinds = full.pointer_kinds;
    out->registration_is_global = full.registration_is_global;
    out->speed_mbits = full.speed_mbits;
    out->port = full.port;
    out->latency_us = full.latency_us;
    out->connection_count_max = full.connection_count_max;
    out->grouped_receives_max = full.grouped_receives_max;
    out->offload_type = full.offload_type;
    out->offload_version = full.offload_version;
    if constexpr (kVersion >= 9) {
      out->force_flush = full.force_flush;
      constexpr int kRoom = sizeof out->virtual_device.devices / sizeof(int);
      out->virtual_device.count =
          full.virtual_device.count < kRoom ? full.virtual_device.count : kRoom;
      for (int i = 0; i < out->virtual_device.count; ++i) {
        out->virtual_device.devices[i] = full.virtual_device.devices[i];
      }
      out->message_bytes_max = full.message_bytes_max;
      out->collective_bytes_max = full.collective_bytes_max;
    }
    if constexpr (kVersion >= 11) out->requests_in_one_max = full.requests_in_one_max;
    if constexpr (kVersion >= 12) {
      out->rail_id = full.rail_id;
      out->plane_id = full.plane_id;
    }
    return kSuccess;
  }

  static Result listen(int device, void* handle, void** comm) {
    return net_listen(process_context(), device, handle, comm);
  }
  static Result listen_11(void* context, int device, void* handle, void** comm) {
    return net_listen(static_cast<Context*>(context), device, handle, comm);
  }
  static Result connect(int device, void* handle, void** comm, DeviceHandle**) {
    return net_connect(process_context(), device, kUndefined, handle, comm);
  }
  static Result connect_10(int device, CommConfig* config, void* handle, void** comm,
                           DeviceHandle**) {
    return net_connect(process_context(), device,
                       config != nullptr ? config->traffic_class : kUndefined, handle, comm);
  }
  static Result connect_11(void* context, int device, void* handle, void** comm, DeviceHandle**) {
    return net_connect(static_cast<Context*>(context), device, kUndefined, handle, comm);
  }
  static Result accept(void* listen_comm, void** comm, DeviceHandle**) {
    return net_accept(listen_comm, comm);
  }

  template <typename Bytes>
  static Result isend(void* comm, void* data, Bytes bytes, int, void*, void** request) {
    return net_isend(comm, data, static_cast<size_t>(bytes), request);
  }
  static Result isend_10(void* comm, void* data, size_t bytes, int, void*, void*, void** request) {
    return net_isend(comm, data, bytes, request);
  }
  // More than one receive is refused, so only one size is read.
  template <typename Bytes>
  static Result irecv(void* comm, int count, void** data, Bytes* bytes, int*, void**,
                      void** request) {
    const size_t size = count == 1 ? static_cast<size_t>(bytes[0]) : 0;
    return net_irecv(comm, count, data, &size, request);
  }
  static Result irecv_10(void* comm, int count, void** data, size_t* bytes, int*, void**, void**,
                         void** request) {
    return net_irecv(comm, count, data, bytes, request);
  }
  static Result iflush(void* comm, int, void**, int*, void**, void** request) {
    return net_iflush(comm, request);
  }

  template <typename Members>
  static Result make_virtual_device(int* device, Members* members) {
    constexpr int kRoom = sizeof members->devices / sizeof(int);
    return net_join_devices(device, members->devices, members->count, kRoom);
  }
  static Result finalize(void* context) { return net_finalize(static_cast<Context*>(context)); }
  // Hints about coming traffic; nothing depends on them.
  static Result set_attributes(void*, Attributes*) { return kSuccess; }
};

template <int kVersion>
constexpr Table<kVersion> make_table() {
  using E = Entries<kVersion>;
  Table<kVersion> table = {};
  table.name = "weir";
  table.devices = net_devices;
  table.get_properties = E::get_properties;
  table.accept = E::accept;
  table.register_memory = net_register;
  table.deregister_memory = net_deregister;
  table.iflush = E::iflush;
  table.test = net_test;
  table.close_send = net_close_send;
  table.close_recv = net_close_recv;
  table.close_listen = net_close_listen;
  if constexpr (kVersion >= 11) {
    table.init = E::init_11;
    table.listen = E::listen_11;
    table.connect = E::connect_11;
    table.finalize = E::finalize;
    table.set_attributes = E::set_attributes;
  } else if constexpr (kVersion == 10) {
    table.init = E::init_10;
    table.listen = E::listen;
    table.connect = E::connect_10;
  } else {
    table.init = E::init_9;
    table.listen = E::listen;
    table.connect = E::connect;
  }
  if constexpr (kVersion >= 10) {
    table.isend = E::isend_10;
    table.irecv = E::irecv_10;
  } else if constexpr (kVersion == 9) {
    table.isend = E::template isend<size_t>;
    table.irecv = E::template irecv<size_t>;
  } else {
    table.isend = E::template isend<int>;
    table.irecv = E::template irecv<int>;
  }
  if constexpr (kVersion >= 9) {
    table.make_virtual_device = E::template make_virtual_device<VirtualDevice<kVersion>>;
  }
  return table;
}

}  // namespace
}  // namespace weir::ncclnet

#pragma GCC visibility push(default)
extern "C" {
extern const weir::ncclnet::Table<8> ncclNetPlugin_v8;
extern const weir::ncclnet::Table<9> ncclNetPlugin_v9;
extern const weir::ncclnet::Table<10> ncclNetPlugin_v10;
extern const weir::ncclnet::Table<11> ncclNetPlugin_v11;
extern const weir::ncclnet::Table<12> ncclNetPlugin_v12;

constinit const weir::ncclnet::Table<8> ncclNetPlugin_v8 = weir::ncclnet::make_table<8>();
constinit const weir::ncclnet::Table<9> ncclNetPlugin_v9 = weir::ncclnet::make_table<9>();
constinit const weir::ncclnet::Table<10> ncclNetPlugin_v10 = weir::ncclnet::make_table<10>();
constinit const weir::ncclnet::Table<11> ncclNetPlugin_v11 = weir::ncclnet::make_table<11>();
constinit const weir::ncclnet::Table<12> ncclNetPlugin_v12 = weir::ncclnet::make_table<12>();
}
#pragma GCC visibility pop
