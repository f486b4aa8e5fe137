// SPDX-License-Identifier: Apache-2.0
// The binary interface of NCCL's network plugins, versions 8 to 12: a shared object exports one
// table of functions per version, ncclNetPlugin_v8 to ncclNetPlugin_v12. Written from NCCL's public
// description; each version is given by its changes. Only types; thread-safe.
//
//   version  first NCCL  what it changes
//         8      2.20.3  (the start here)
//         9      2.24.3  sizes of messages are size_t, not int; a flush may be forced; virtual
//                        devices; the largest message is told
//        10      2.26.2  init gets a profiler's callback, connect a traffic class, isend and irecv
//                        the profiler's parent events
//        11      2.28.3  init makes a context for a communicator, which listen and connect get and
//                        finalize ends; the traffic class moves to init; attributes of the coming
//                        traffic are told
//        12      2.30.3  up to 8 devices, not 4, behind a virtual one; rail and plane of a device
//
// The numbers beside the members are their offsets on 64-bit Linux; the sizes are asserted here,
// the offsets in tests/unit/ncclnet/abi_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::ncclnet {

inline constexpr int kVersionMin = 8;
inline constexpr int kVersionMax = 12;

inline constexpr size_t kHandleBytes = 128;
// Requests that a connection must be able to have under way.
inline constexpr int kRequestCountMin = 32;
inline constexpr int kPointerHost = 1;
inline constexpr int kPointerCuda = 2;
inline constexpr int kDeviceIsHost = 0;  // no part of the work is done by a kernel on the GPU
inline constexpr int kUndefined = -1;    // traffic class, rail, plane

// ncclResult_t
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDebugLogLevel, and the subsystem of networks
enum LogLevel : int { kLogWarn = 2, kLogInfo = 3, kLogTrace = 5 };
inline constexpr unsigned long kLogNet = 16;

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using ProfilerCallback = Result (*)(void** event, int type, void* parent, int64_t plugin,
                                    void* data);

// The handle of a device-side plugin; Weir's plugin has none.
struct DeviceHandle;

struct CommConfig {
  int traffic_class;
};

struct CommAttributes {
  int32_t concurrent_peers_max;
  int32_t concurrent_peers_min;
  int32_t flows_per_peer_max;
  int32_t flows_per_peer_min;
};

struct Attributes {
  CommAttributes send;
  CommAttributes receive;
  uint32_t operation;
  uint32_t algorithm;
  uint32_t protocol;
};
static_assert(sizeof(Attributes) == 44);

template <int kDeviceCountMax>
struct VirtualDeviceOf {
  int count;
  int devices[kDeviceCountMax];
};

template <int kVersion>
using VirtualDevice = VirtualDeviceOf<(kVersion >= 12 ? 8 : 4)>;

template <int kVersion>
struct Properties;

template <>
struct Properties<8> {
  char* name;                  //  0
  char* pci_path;              //  8  directory of the PCI device in /sys, or null
  uint64_t guid;               // 16  the same for ports of one adapter
  int pointer_kinds;           // 24
  int registration_is_global;  // 28  not tied to a connection
  int speed_mbits;             // 32
  int port;                    // 36
  float latency_us;            // 40
  int connection_count_max;    // 44
  int grouped_receives_max;    // 48
  int offload_type;            // 52
  int offload_version;         // 56
};
static_assert(sizeof(Properties<8>) == 64);

template <>
struct Properties<9> {
  char* name;                       //  0
  char* pci_path;                   //  8
  uint64_t guid;                    // 16
  int pointer_kinds;                // 24
  int registration_is_global;       // 28
  int force_flush;                  // 32
  int speed_mbits;                  // 36
  int port;                         // 40
  float latency_us;                 // 44
  int connection_count_max;         // 48
  int grouped_receives_max;         // 52
  int offload_type;                 // 56
  int offload_version;              // 60
  VirtualDevice<9> virtual_device;  // 64
  size_t message_bytes_max;         // 88
  size_t collective_bytes_max;      // 96
};
static_assert(sizeof(Properties<9>) == 104);

template <>
struct Properties<10> : Properties<9> {};
static_assert(sizeof(Properties<10>) == 104);

template <>
struct Properties<11> : Properties<9> {
  int requests_in_one_max;  // 104
};
static_assert(sizeof(Properties<11>) == 112);

template <>
struct Properties<12> {
  char* name;                        //   0
  char* pci_path;                    //   8
  uint64_t guid;                     //  16
  int pointer_kinds;                 //  24
  int registration_is_global;        //  28
  int force_flush;                   //  32
  int speed_mbits;                   //  36
  int port;                          //  40
  float latency_us;                  //  44
  int connection_count_max;          //  48
  int grouped_receives_max;          //  52
  int offload_type;                  //  56
  int offload_version;               //  60
  VirtualDevice<12> virtual_device;  //  64
  size_t message_bytes_max;          // 104
  size_t collective_bytes_max;       // 112
  int requests_in_one_max;           // 120
  int16_t rail_id;                   // 124
  int16_t plane_id;                  // 126
};
static_assert(sizeof(Properties<12>) == 128);

// The functions whose types differ between versions.
template <int kVersion>
struct Functions {
  using Init = Result (*)(void** context, uint64_t comm_id, CommConfig* config, Logger log,
                          ProfilerCallback profiler);
  using Listen = Result (*)(void* context, int device, void* handle, void** listen_comm);
  using Connect = Result (*)(void* context, int device, void* handle, void** send_comm,
                             DeviceHandle** offload);
  using Isend = Result (*)(void* send_comm, void* data, size_t bytes, int tag, void* memory,
                           void* parent_event, void** request);
  using Irecv = Result (*)(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                           void** memory, void** parent_events, void** request);
};

template <>
struct Functions<10> : Functions<11> {
  using Init = Result (*)(Logger log, ProfilerCallback profiler);
  using Listen = Result (*)(int device, void* handle, void** listen_comm);
  using Connect = Result (*)(int device, CommConfig* config, void* handle, void** send_comm,
                             DeviceHandle** offload);
};

template <>
struct Functions<9> : Functions<10> {
  using Init = Result (*)(Logger log);
  using Connect = Result (*)(int device, void* handle, void** send_comm, DeviceHandle** offload);
  using Isend = Result (*)(void* send_comm, void* data, size_t bytes, int tag, void* memory,
                           void** request);
  using Irecv = Result (*)(void* recv_comm, int count, void** data, size_t* bytes, int* tags,
                           void** memory, void** request);
};

template <>
struct Functions<8> : Functions<9> {
  using Isend = Result (*)(void* send_comm, void* data, int bytes, int tag, void* memory,
                           void** request);
  using Irecv = Result (*)(void* recv_comm, int count, void** data, int* bytes, int* tags,
                           void** memory, void** request);
};

// The members of all versions, in this order.
template <int kVersion>
struct CommonTable {
  const char* name;
  typename Functions<kVersion>::Init init;
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties<kVersion>* properties);
  typename Functions<kVersion>::Listen listen;
  // Neither of these two waits: success without a connection means that NCCL calls again.
  typename Functions<kVersion>::Connect connect;
  Result (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** offload);
  Result (*register_memory)(void* comm, void* data, size_t bytes, int kind, void** memory);
  Result (*register_dmabuf)(void* comm, void* data, size_t bytes, int kind, uint64_t offset, int fd,
                            void** memory);
  Result (*deregister_memory)(void* comm, void* memory);
  // Success without a request: not possible now, call again.
  typename Functions<kVersion>::Isend isend;
  typename Functions<kVersion>::Irecv irecv;
  Result (*iflush)(void* recv_comm, int count, void** data, int* bytes, void** memory,
                   void** request);
  Result (*test)(void* request, int* done, int* bytes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_memory)(void* comm, void* memory, void** device_memory);
  Result (*irecv_consumed)(void* recv_comm, int count, void* request);
};

template <int kVersion>
struct Table;

template <>
struct Table<8> : CommonTable<8> {};
static_assert(sizeof(Table<8>) == 19 * 8);

template <>
struct Table<9> : CommonTable<9> {
  Result (*make_virtual_device)(int* device, VirtualDevice<9>* members);
};
static_assert(sizeof(Table<9>) == 20 * 8);

template <>
struct Table<10> : CommonTable<10> {
  Result (*make_virtual_device)(int* device, VirtualDevice<10>* members);
};
static_assert(sizeof(Table<10>) == 20 * 8);

template <>
struct Table<11> : CommonTable<11> {
  Result (*make_virtual_device)(int* device, VirtualDevice<11>* members);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, Attributes* attributes);
};
static_assert(sizeof(Table<11>) == 22 * 8);

template <>
struct Table<12> : CommonTable<12> {
  Result (*make_virtual_device)(int* device, VirtualDevice<12>* members);
  Result (*finalize)(void* context);
  Result (*set_attributes)(void* context, Attributes* attributes);
};
static_assert(sizeof(Table<12>) == 22 * 8);

// "ncclRemoteError"
const char* name_of(Result result);

}  // namespace weir::ncclnet
