// SPDX-License-Identifier: Apache-2.0
// LoadedPlugin: an NCCL network plugin, opened as NCCL opens it, with one interface for all
// versions of the ABI (abi.h). Host memory only, no grouped receives. The functions do what the
// plugin's do: none waits, and success without a result means to call again. Warnings that the
// plugin logs on the calling thread are kept (take_warning). A plugin and its object are never
// unloaded. Thread rule: the plugin's own, which is one thread at a time per connection; opening is
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "ncclnet/abi.h"

namespace weir::ncclnet {

// The properties of a device that all versions have.
struct DeviceProperties {
  std::string name;
  std::string pci_path;
  uint64_t guid = 0;
  int pointer_kinds = 0;
  int speed_mbits = 0;
  int connection_count_max = 0;
  int grouped_receives_max = 0;
  int offload_type = 0;
  uint64_t message_bytes_max = 0;  // limited to what this interface can carry, 2^31 - 1
};

class LoadedPlugin {
 public:
  virtual ~LoadedPlugin() = default;

  // The table's name, the interface's version, the file.
  virtual const char* name() const = 0;
  virtual int version() const = 0;
  const std::string& file() const { return file_; }
  // "weir, version 12, of /usr/lib/libnccl-net-weir.so"
  std::string description() const;

  // Versions 8 to 10 have one permanent context for the process: then this calls the plugin only
  // once and returns the same result again.
  virtual Result init(uint64_t comm_id, void** context) = 0;
  virtual Result finalize(void* context) = 0;
  virtual Result devices(int* count) = 0;
  virtual Result properties(int device, DeviceProperties* properties) = 0;
  // `handle`: kHandleBytes.
  virtual Result listen(void* context, int device, void* handle, void** listen_comm) = 0;
  virtual Result connect(void* context, int device, void* handle, void** send_comm) = 0;
  virtual Result accept(void* listen_comm, void** recv_comm) = 0;
  virtual Result register_memory(void* comm, void* data, size_t bytes, void** memory) = 0;
  virtual Result deregister_memory(void* comm, void* memory) = 0;
  virtual Result isend(void* send_comm, void* data, size_t bytes, void* memory, void** request) = 0;
  virtual Result irecv(void* recv_comm, void* data, size_t bytes, void* memory, void** request) = 0;
  virtual Result test(void* request, int* done, int* bytes) = 0;
  virtual Result close_send(void* send_comm) = 0;
  virtual Result close_recv(void* recv_comm) = 0;
  virtual Result close_listen(void* listen_comm) = 0;

  // For tests of the plugin itself: its table, as abi.h has it for the version.
  virtual const void* table() const = 0;

 protected:
  std::string file_;
  friend LoadedPlugin* open_plugin(const std::string& plugin, int version, std::string* reason);
};

// `plugin` as NCCL_NET_PLUGIN has it: a path or a file name that the dynamic loader finds, else
// NAME for libnccl-net-NAME.so. `version` 0: the newest that both support. Null with the reason: no
// such file, no known table, or a table with a function missing. The same plugin and version give
// the same object.
LoadedPlugin* open_plugin(const std::string& plugin, int version, std::string* reason);

// Returns and clears the latest warning of a plugin on this thread; "" when there was none.
std::string take_warning();

}  // namespace weir::ncclnet
