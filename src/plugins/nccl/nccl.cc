// SPDX-License-Identifier: Apache-2.0
// The transport `nccl`: whole collectives on memory of CUDA devices, by the real NCCL. It carries
// no messages and has nothing to do with memory of the host. docs/nccl_plugin.md
#include <stdio.h>
#include <string.h>

#include <exception>
#include <string>

#include "plugins/nccl/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::nccl {
namespace {

constexpr uint32_t kRankCountMax = 65536;

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

weir_result_t refuse(const weir_host_t* host, weir_result_t code, const std::string& text) {
  if (host->error != nullptr) host->error(host->context, ("nccl: " + text).c_str());
  return code;
}

const Library* find_library(const weir_host_t* host, std::string* reason) {
  const char* path =
      host->setting != nullptr ? host->setting(host->context, "WEIR_NCCL_LIBRARY") : nullptr;
  return library(path, reason);
}

weir_result_t viable(void*, const weir_host_t* host, char* reason, size_t reason_bytes) {
  std::string why;
  const Library* found = find_library(host, &why);
  if (found != nullptr) why = found->text();
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", why.c_str());
  return found != nullptr ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
}

weir_result_t open(void*, const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  if (config->struct_bytes < sizeof *config) {
    return refuse(host, WEIR_ERROR_INVALID_ARGUMENT, "the configuration is of another version");
  }
  if (config->rank >= config->rank_count || config->rank_count > kRankCountMax) {
    return refuse(host, WEIR_ERROR_INVALID_ARGUMENT,
                  "rank " + std::to_string(config->rank) + " of " +
                      std::to_string(config->rank_count) + " ranks");
  }
  std::string why;
  const Library* found = find_library(host, &why);
  const Driver* cuda = found != nullptr ? driver(&why) : nullptr;
  if (cuda == nullptr) return refuse(host, WEIR_ERROR_UNSUPPORTED, why);
  try {
    *instance = reinterpret_cast<weir_transport_t*>(new Instance(host, *config, *found, *cuda));
  } catch (const std::exception&) {
    return WEIR_ERROR_NO_MEMORY;
  }
  return WEIR_OK;
}

// It carries no messages: the ranks meet by introduce and join.
weir_result_t address(weir_transport_t*, unsigned char*, size_t* bytes) {
  *bytes = 0;
  return WEIR_OK;
}
weir_result_t connect(weir_transport_t*, const unsigned char* const*, const size_t*, uint64_t) {
  return WEIR_ERROR_UNSUPPORTED;
}
void close(weir_transport_t* instance) { delete from(instance); }
weir_result_t progress(weir_transport_t*) { return WEIR_OK; }

void describe_peer(weir_transport_t* instance, uint32_t, char* text, size_t text_bytes) {
  if (text_bytes != 0)
    snprintf(text, text_bytes, "by %s", from(instance)->library().text().c_str());
}

// No exception leaves the plugin.
template <typename Body>
weir_result_t guarded(Body body) {
  try {
    return body();
  } catch (const std::exception&) {
    return WEIR_ERROR_NO_MEMORY;
  }
}

constexpr uint32_t kKinds = (1u << (WEIR_COLLECTIVE_ALL_TO_ALL_V + 1)) - 1;
constexpr uint32_t kTypes = (1u << (WEIR_FLOAT8_E5M2 + 1)) - 1;
constexpr uint32_t kOps = ((1u << (WEIR_AVG + 1)) - 1) | 1u << WEIR_COLLECTIVE_SCALED_SUM;

const weir_collective_functions_t kCollectives = {
    .struct_bytes = sizeof(weir_collective_functions_t),
    .kinds = kKinds,
    .types = kTypes,
    .ops = kOps,
    .introduce =
        [](weir_transport_t* t, int device, unsigned char* text, size_t* bytes) {
          return guarded([&] { return from(t)->introduce(device, text, bytes); });
        },
    .join =
        [](weir_transport_t* t, const unsigned char* const* texts, const size_t* bytes) {
          return guarded([&] { return from(t)->join(texts, bytes); });
        },
    .joined = [](weir_transport_t* t) { return guarded([&] { return from(t)->joined(); }); },
    .start =
        [](weir_transport_t* t, const weir_collective_call_t* call, weir_transport_op_t* op) {
          return guarded([&] { return from(t)->start(*call, op); });
        },
    .enqueued =
        [](weir_transport_t* t, weir_transport_op_t* op) {
          return guarded([&] { return from(t)->enqueued(op); });
        },
    .test = [](weir_transport_t* t,
               weir_transport_op_t* op) { return guarded([&] { return from(t)->test(op); }); },
    .abort = [](weir_transport_t* t) { return guarded([&] { return from(t)->abort(); }); },
};

const weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "nccl",
    .summary = "whole collectives on device memory, by the real NCCL",
    .caps = {.bits = WEIR_CAP_COLLECTIVES,
             .memory_kinds = WEIR_MEMORY_CUDA,
             .lane_count = 1,
             .message_bytes_max = 0,
             .rank_count_max = kRankCountMax,
             .credit = 0},
    .viable = viable,
    .open = open,
    .address = address,
    .connect = connect,
    .close = close,
    .progress = progress,
    .describe_peer = describe_peer,
    .collectives = &kCollectives,
};

}  // namespace
}  // namespace weir::plugins::nccl

extern "C" WEIR_API const weir_transport_functions_t* weir_transport_plugin(void);
const weir_transport_functions_t* weir_transport_plugin(void) {
  return &weir::plugins::nccl::kFunctions;
}
