// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/loader.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>

#include "core/base/fork_barred.h"

namespace weir::plugin {
namespace {

// The shortest table that is accepted.
constexpr size_t kFunctionsBytesMin = offsetof(weir_transport_functions_t, quiesce);
constexpr uint64_t kRemoteBits = WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL;

Status refused(const std::string& path, std::string_view reason) {
  return Status(Code::kRefused, fmt::format("plugin {}: {}", path, reason));
}

// Safe: owned by root or this user, and writable by nobody else. A directory may be writable by
// others when it is sticky, as /tmp is: then they can add to it, but not replace this user's files.
std::string unsafe_reason(const struct stat& status) {
  if (status.st_uid != 0 && status.st_uid != geteuid()) {
    return fmt::format("is owned by user {}, neither root nor user {}", status.st_uid, geteuid());
  }
  const bool sticky_directory = S_ISDIR(status.st_mode) && (status.st_mode & S_ISVTX) != 0;
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky_directory) {
    return fmt::format("may be written by others (mode {:04o}); chmod go-w it",
                       status.st_mode & 07777u);
  }
  return "";
}

// Every directory on the path is checked: a user who may rename one can replace the file.
Status check_directories(const std::string& path, const std::string& real_path) {
  for (size_t end = real_path.rfind('/'); end != std::string::npos;
       end = end == 0 ? std::string::npos : real_path.rfind('/', end - 1)) {
    const std::string directory = end == 0 ? "/" : real_path.substr(0, end);
    struct stat status;
    if (stat(directory.c_str(), &status) != 0) {
      return refused(path, fmt::format("stat of {}: {}", directory, strerror(errno)));
    }
    const std::string reason = unsafe_reason(status);
    if (!reason.empty())
      return refused(path, fmt::format("its directory {} {}", directory, reason));
  }
  return Status();
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

Status check_functions(const weir_transport_functions_t* functions) {
  const auto bad = [](std::string text) { return Status(Code::kRefused, std::move(text)); };
  if (functions == nullptr) return bad("it returned no function table");
  if (functions->abi_version != WEIR_PLUGIN_ABI_VERSION) {
    return bad(
        fmt::format("it has ABI version {}, this library {}; rebuild it against this weir/plugin.h",
                    functions->abi_version, WEIR_PLUGIN_ABI_VERSION));
  }
  if (functions->struct_bytes < kFunctionsBytesMin || functions->struct_bytes > sizeof *functions) {
    return bad(fmt::format(
        "its function table has {} bytes, not {} to {}; rebuild it against this weir/plugin.h",
        functions->struct_bytes, kFunctionsBytesMin, sizeof *functions));
  }
  const char* name = functions->name;
  if (name == nullptr || name[0] == 0 || strnlen(name, 33) > 32) {
    return bad("its transport has no name of 1 to 32 characters");
  }
  for (const char* c = name; *c != 0; ++c) {
    if (std::islower(static_cast<unsigned char>(*c)) == 0 &&
        std::isdigit(static_cast<unsigned char>(*c)) == 0 && *c != '_') {
      return bad("the name of its transport is not made of a-z, 0-9 and _");
    }
  }
  if (functions->summary == nullptr) return bad("its transport has no summary");
  if (functions->parts != nullptr) {
    return bad("it declares a transport that is made of others, which a plugin must not do");
  }
  const weir_transport_caps_t& caps = functions->caps;
  constexpr uint64_t kKnownBits = WEIR_CAP_SEND_RECV | WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW |
                                  WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
                                  WEIR_CAP_SEALED | WEIR_CAP_COLLECTIVES | WEIR_CAP_DEVICE_MEMORY |
                                  kRemoteBits;
  if ((caps.bits & ~kKnownBits) != 0) {
    return bad(fmt::format("it declares unknown capabilities {:#x}", caps.bits & ~kKnownBits));
  }
  if (caps.lane_count < 1 || caps.lane_count > WEIR_TRANSPORT_LANES_MAX) {
    return bad(fmt::format("it declares {} lanes; 1 to {} are possible", caps.lane_count,
                           WEIR_TRANSPORT_LANES_MAX));
  }
  if (caps.rank_count_max < 1) return bad("it declares room for 0 ranks");
  const bool messages = (caps.bits & WEIR_CAP_SEND_RECV) != 0;
  const bool quiesces = (caps.bits & WEIR_CAP_QUIESCE) != 0;
  const bool remote = (caps.bits & kRemoteBits) != 0;
  const bool signals = (caps.bits & WEIR_CAP_SIGNAL) != 0;
  const auto reaches_to = [&](size_t offset) { return functions->struct_bytes >= offset; };
  const bool reaches_quiesce = reaches_to(offsetof(weir_transport_functions_t, remote_caps));
  const bool reaches_remote = reaches_to(offsetof(weir_transport_functions_t, describe_peer));
  const bool devices = (caps.bits & WEIR_CAP_DEVICE_MEMORY) != 0;
  const bool reaches_devices =
      reaches_to(offsetof(weir_transport_functions_t, device_recv) + sizeof(void*));
  const bool collects = (caps.bits & WEIR_CAP_COLLECTIVES) != 0;
  const weir_collective_functions_t* whole =
      reaches_to(offsetof(weir_transport_functions_t, collectives) + sizeof(void*))
          ? functions->collectives
          : nullptr;
  if (messages && (caps.credit < 1 || caps.message_bytes_max < 1 || caps.memory_kinds == 0)) {
    return bad("it declares send and recv with no credit, no message size or no memory kind");
  }
  if (devices && (!messages || (caps.memory_kinds & WEIR_MEMORY_CUDA) == 0)) {
    return bad("it declares messages on device memory, but no messages or no device memory");
  }
  if (collects && whole != nullptr) {
    if (whole->struct_bytes != sizeof *whole) {
      return bad(fmt::format(
          "its table of collectives has {} bytes, not {}; rebuild it against this weir/plugin.h",
          whole->struct_bytes, sizeof *whole));
    }
    if (caps.memory_kinds == 0 || whole->kinds == 0 || whole->types == 0) {
      return bad("it declares collectives of no kind, no type or on no memory");
    }
  }
  const struct {
    const char* name;
    bool needed;
    bool there;
  } entries[] = {
      {"viable", true, functions->viable != nullptr},
      {"open", true, functions->open != nullptr},
      {"address", true, functions->address != nullptr},
      {"connect", true, functions->connect != nullptr},
      {"close", true, functions->close != nullptr},
      {"progress", true, functions->progress != nullptr},
      {"send", messages, functions->send != nullptr},
      {"recv", messages, functions->recv != nullptr},
      {"test", messages, functions->test != nullptr},
      {"segment", (caps.bits & WEIR_CAP_SEGMENT) != 0, functions->segment != nullptr},
      {"window_open", (caps.bits & WEIR_CAP_WINDOW) != 0, functions->window_open != nullptr},
      {"window_close", (caps.bits & WEIR_CAP_WINDOW) != 0, functions->window_close != nullptr},
      {"peer_alive", (caps.bits & WEIR_CAP_PEER_FAILURE) != 0, functions->peer_alive != nullptr},
      {"quiesce", quiesces, reaches_quiesce && functions->quiesce != nullptr},
      {"remote_caps", remote, reaches_remote && functions->remote_caps != nullptr},
      {"memory_register", remote, reaches_remote && functions->memory_register != nullptr},
      {"memory_key", remote, reaches_remote && functions->memory_key != nullptr},
      {"memory_deregister", remote, reaches_remote && functions->memory_deregister != nullptr},
      {"remote_open", remote, reaches_remote && functions->remote_open != nullptr},
      {"remote_close", remote, reaches_remote && functions->remote_close != nullptr},
      {"put", (caps.bits & WEIR_CAP_PUT) != 0, reaches_remote && functions->put != nullptr},
      {"get", (caps.bits & WEIR_CAP_GET) != 0, reaches_remote && functions->get != nullptr},
      {"put_signal", signals, reaches_remote && functions->put_signal != nullptr},
      {"signal_read", signals, reaches_remote && functions->signal_read != nullptr},
      {"test", remote, functions->test != nullptr},
      {"collectives", collects,
       whole != nullptr && whole->introduce != nullptr && whole->join != nullptr &&
           whole->joined != nullptr && whole->start != nullptr && whole->enqueued != nullptr &&
           whole->test != nullptr && whole->abort != nullptr},
      {"device_viable", devices, reaches_devices && functions->device_viable != nullptr},
      {"device_send", devices, reaches_devices && functions->device_send != nullptr},
      {"device_recv", devices, reaches_devices && functions->device_recv != nullptr},
  };
  for (const auto& entry : entries) {
    if (entry.needed && !entry.there) {
      return bad(
          fmt::format("its function {} is missing, though its capabilities need it", entry.name));
    }
  }
  return Status();
}

Result<const weir_transport_functions_t*> open_plugin(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    return refused(path, "the path is not absolute");
  }
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return refused(path, strerror(errno));
  const std::string real_path = resolved;
  free(resolved);
  WEIR_RETURN_IF_ERROR(check_directories(path, real_path));
  Descriptor file;
  file.fd = open(real_path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file.fd < 0) return refused(path, strerror(errno));
  struct stat status;
  if (fstat(file.fd, &status) != 0) return refused(path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return refused(path, "it is not a regular file");
  const std::string reason = unsafe_reason(status);
  if (!reason.empty()) return refused(path, "it " + reason);
  const ForkBarred barred;  // a half-loaded object would stay so in a child
  void* object = dlopen(real_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* text = dlerror();
    return refused(path, text != nullptr ? text : "dlopen failed");
  }
  // Never closed, even when it is refused: its constructors have run, and a thread that they
  // started or a handler that they registered would run unmapped code.
  auto entry = reinterpret_cast<weir_transport_plugin_fn>(dlsym(object, WEIR_PLUGIN_SYMBOL));
  if (entry == nullptr) {
    return refused(path, "it has no symbol " WEIR_PLUGIN_SYMBOL "; is it a Weir transport?");
  }
  const weir_transport_functions_t* functions = entry();
  const Status checked = check_functions(functions);
  if (!checked.ok()) return refused(path, checked.text());
  return functions;
}

}  // namespace weir::plugin
