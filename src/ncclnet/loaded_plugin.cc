// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/loaded_plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace weir::ncclnet {
namespace {

constexpr uint64_t kMessageBytesMax = (uint64_t{1} << 31) - 1;  // `test` returns sizes as int
constexpr size_t kNameBytesMax = 200;

thread_local char latest_warning[512];

// The log function for the plugin; only its warnings tell why a call has failed.
void hear(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level > kLogWarn) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(latest_warning, sizeof latest_warning, format, arguments);
  va_end(arguments);
}

std::string text_of(const char* text) { return text != nullptr ? text : ""; }

template <int kVersion>
class Versioned final : public LoadedPlugin {
 public:
  explicit Versioned(const Table<kVersion>* plugin) : table_(*plugin) {}

  const char* name() const override { return table_.name; }
  int version() const override { return kVersion; }
  const void* table() const override { return &table_; }

  Result init(uint64_t comm_id, void** context) override {
    *context = nullptr;
    if constexpr (kVersion >= 11) {
      CommConfig config = {kUndefined};
      return table_.init(context, comm_id, &config, hear, nullptr);
    } else {
      const std::lock_guard lock(mutex_);
      if (initialized_) return outcome_;
      if constexpr (kVersion == 10) {
        outcome_ = table_.init(hear, nullptr);
      } else {
        outcome_ = table_.init(hear);
      }
      initialized_ = outcome_ == kSuccess;
      return outcome_;
    }
  }
  Result finalize(void* context) override {
    if constexpr (kVersion >= 11) return table_.finalize(context);
    (void)context;
    return kSuccess;
  }
  Result devices(int* count) override { return table_.devices(count); }

  Result properties(int device, DeviceProperties* out) override {
    Properties<kVersion> told = {};
    const Result result = table_.get_properties(device, &told);
    if (result != kSuccess) return result;
    out->name = text_of(told.name);
    out->pci_path = text_of(told.pci_path);
    out->guid = told.guid;
    out->pointer_kinds = told.pointer_kinds;
    out->speed_mbits = told.speed_mbits;
    out->connection_count_max = told.connection_count_max;
    out->grouped_receives_max = told.grouped_receives_max;
    out->offload_type = told.offload_type;
    out->message_bytes_max = kMessageBytesMax;
    if constexpr (kVersion >= 9) {
      if (told.message_bytes_max != 0) {
        out->message_bytes_max = std::min<uint64_t>(kMessageBytesMax, told.message_bytes_max);
      }
    }
    return kSuccess;
  }

  Result listen(void* context, int device, void* handle, void** listen_comm) override {
    *listen_comm = nullptr;
    if constexpr (kVersion >= 11) return table_.listen(context, device, handle, listen_comm);
    if constexpr (kVersion < 11) return table_.listen(device, handle, listen_comm);
  }
  Result connect(void* context, int device, void* handle, void** send_comm) override {
    *send_comm = nullptr;
    DeviceHandle* offload = nullptr;
    if constexpr (kVersion >= 11) {
      return table_.connect(context, device, handle, send_comm, &offload);
    } else if constexpr (kVersion == 10) {
      CommConfig config = {kUndefined};
      return table_.connect(device, &config, handle, send_comm, &offload);
    } else {
      return table_.connect(device, handle, send_comm, &offload);
    }
  }
  Result accept(void* listen_comm, void** recv_comm) override {
    *recv_comm = nullptr;
    DeviceHandle* offload = nullptr;
    return table_.accept(listen_comm, recv_comm, &offload);
  }
  Result register_memory(void* comm, void* data, size_t bytes, void** memory) override {
    *memory = nullptr;
    return table_.register_memory(comm, data, bytes, kPointerHost, memory);
  }
  Result deregister_memory(void* comm, void* memory) override {
    return table_.deregister_memory(comm, memory);
  }
  Result isend(void* comm, void* data, size_t bytes, void* memory, void** request) override {
    *request = nullptr;
    if constexpr (kVersion >= 10) {
      return table_.isend(comm, data, bytes, 0, memory, nullptr, request);
    } else if constexpr (kVersion == 9) {
      return table_.isend(comm, data, bytes, 0, memory, request);
    } else {
      return table_.isend(comm, data, static_cast<int>(bytes), 0, memory, request);
    }
  }
  Result irecv(void* comm, void* data, size_t bytes, void* memory, void** request) override {
    *request = nullptr;
    int tag = 0;
    if constexpr (kVersion >= 10) {
      void* parent = nullptr;
      return table_.irecv(comm, 1, &data, &bytes, &tag, &memory, &parent, request);
    } else if constexpr (kVersion == 9) {
      return table_.irecv(comm, 1, &data, &bytes, &tag, &memory, request);
    } else {
      auto size = static_cast<int>(bytes);
      return table_.irecv(comm, 1, &data, &size, &tag, &memory, request);
    }
  }
  Result test(void* request, int* done, int* bytes) override {
    *done = 0;
    return table_.test(request, done, bytes);
  }
  Result close_send(void* comm) override { return table_.close_send(comm); }
  Result close_recv(void* comm) override { return table_.close_recv(comm); }
  Result close_listen(void* comm) override { return table_.close_listen(comm); }

 private:
  const Table<kVersion>& table_;
  std::mutex mutex_;
  bool initialized_ = false;
  Result outcome_ = kSuccess;
};

// The first function that is missing, or null.
template <int kVersion>
const char* missing_function(const Table<kVersion>& table) {
  const struct {
    const char* name;
    bool there;
  } entries[] = {
      {"init", table.init != nullptr},
      {"devices", table.devices != nullptr},
      {"getProperties", table.get_properties != nullptr},
      {"listen", table.listen != nullptr},
      {"connect", table.connect != nullptr},
      {"accept", table.accept != nullptr},
      {"regMr", table.register_memory != nullptr},
      {"deregMr", table.deregister_memory != nullptr},
      {"isend", table.isend != nullptr},
      {"irecv", table.irecv != nullptr},
      {"test", table.test != nullptr},
      {"closeSend", table.close_send != nullptr},
      {"closeRecv", table.close_recv != nullptr},
      {"closeListen", table.close_listen != nullptr},
  };
  for (const auto& entry : entries) {
    if (!entry.there) return entry.name;
  }
  if constexpr (kVersion >= 11) {
    if (table.finalize == nullptr) return "finalize";
  }
  return nullptr;
}

// The table of this version if the object has it; null with or without a reason.
template <int kVersion>
std::unique_ptr<LoadedPlugin> take_table(void* object, std::string* reason) {
  const std::string symbol = "ncclNetPlugin_v" + std::to_string(kVersion);
  const auto* table = static_cast<const Table<kVersion>*>(dlsym(object, symbol.c_str()));
  if (table == nullptr) return nullptr;
  const char* missing = missing_function(*table);
  if (missing != nullptr || table->name == nullptr || strlen(table->name) > kNameBytesMax) {
    *reason = "its " + symbol + " has no " + (missing != nullptr ? missing : "usable name");
    return nullptr;
  }
  return std::make_unique<Versioned<kVersion>>(table);
}

template <int kVersion = kVersionMax>
std::unique_ptr<LoadedPlugin> take_newest(void* object, int wanted, std::string* reason) {
  if (wanted == 0 || wanted == kVersion) {
    auto plugin = take_table<kVersion>(object, reason);
    // A broken table is not skipped in favour of an older one: NCCL would use it.
    if (plugin != nullptr || !reason->empty()) return plugin;
  }
  if constexpr (kVersion > kVersionMin) {
    return take_newest<kVersion - 1>(object, wanted, reason);
  } else {
    return nullptr;
  }
}

void* open_object(const std::string& plugin, std::string* reason) {
  if (void* object = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL)) return object;
  *reason = text_of(dlerror());
  const bool is_file = plugin.find('/') != std::string::npos ||
                       (plugin.compare(0, 3, "lib") == 0 && plugin.size() > 3 &&
                        plugin.compare(plugin.size() - 3, 3, ".so") == 0);
  if (is_file) return nullptr;
  const std::string file = "libnccl-net-" + plugin + ".so";
  if (void* object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return object;
  *reason += "; " + text_of(dlerror());
  return nullptr;
}

std::string file_of(void* object, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(object, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) {
    return otherwise;
  }
  return map->l_name;
}

struct Opened {
  std::string plugin;
  int version;
  std::unique_ptr<LoadedPlugin> loaded;
};

}  // namespace

const char* name_of(Result result) {
  switch (result) {
    case kSuccess:
      return "ncclSuccess";
    case kUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case kSystemError:
      return "ncclSystemError";
    case kInternalError:
      return "ncclInternalError";
    case kInvalidArgument:
      return "ncclInvalidArgument";
    case kInvalidUsage:
      return "ncclInvalidUsage";
    case kRemoteError:
      return "ncclRemoteError";
    case kInProgress:
      return "ncclInProgress";
  }
  return "an unknown error";
}

std::string LoadedPlugin::description() const {
  return std::string(name()) + ", version " + std::to_string(version()) + ", of " + file_;
}

LoadedPlugin* open_plugin(const std::string& plugin, int version, std::string* reason) {
  static std::mutex mutex;
  static auto* opened = new std::vector<Opened>;
  const std::lock_guard lock(mutex);
  for (const Opened& one : *opened) {
    if (one.plugin == plugin && one.version == version) return one.loaded.get();
  }
  reason->clear();
  void* object = open_object(plugin, reason);
  if (object == nullptr) return nullptr;
  const std::string file = file_of(object, plugin);
  reason->clear();
  auto loaded = take_newest(object, version, reason);
  if (loaded == nullptr) {
    if (reason->empty()) {
      *reason = version != 0 ? "it has no ncclNetPlugin_v" + std::to_string(version)
                             : "it has none of ncclNetPlugin_v" + std::to_string(kVersionMin) +
                                   " to _v" + std::to_string(kVersionMax) +
                                   "; is it a network plugin of NCCL, and of 2.20 or later?";
    }
    *reason = file + ": " + *reason;
    return nullptr;
  }
  loaded->file_ = file;
  opened->push_back({plugin, version, std::move(loaded)});
  return opened->back().loaded.get();
}

std::string take_warning() {
  std::string text = latest_warning;
  latest_warning[0] = 0;
  return text;
}

}  // namespace weir::ncclnet
