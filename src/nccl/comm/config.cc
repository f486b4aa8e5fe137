// SPDX-License-Identifier: Apache-2.0
#include "nccl/comm/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

namespace weir::nccl {

namespace {

constexpr unsigned kSimInfoMagic = 0x74685283;

// Longer than Weir's own default, since a collective may wait for a rank that writes a checkpoint.
constexpr int64_t kTimeoutMs = 30 * 60 * 1000;

// What every structure begins with.
struct Head {
  size_t size;
  unsigned magic;
  unsigned version;
};

// A structure may have padding where a later version has a field.
struct IntField {
  const char* name;
  size_t offset;
  unsigned since;
  int min;
  int max;
};

// nvlsHostMode may also be ncclNvlsHostModeDisable.
constexpr int kNvlsModesMax =
    ncclNvlsHostModeDisableTransport | ncclNvlsHostModeDisableSymmetricMultimem;

#define WEIR_FIELD(name, since, min, max) \
  { #name, offsetof(ncclConfig_t, name), since, min, max }
constexpr IntField kFields[] = {
    WEIR_FIELD(blocking, 21400, 0, 1),
    WEIR_FIELD(cgaClusterSize, 21700, 0, 8),
    WEIR_FIELD(minCTAs, 21700, 1, INT_MAX),
    WEIR_FIELD(maxCTAs, 21700, 1, INT_MAX),
    WEIR_FIELD(splitShare, 21800, 0, 1),
    WEIR_FIELD(trafficClass, 22700, 0, INT_MAX),
    WEIR_FIELD(collnetEnable, 22700, 0, 1),
    WEIR_FIELD(CTAPolicy, 22700, 0, 3),
    WEIR_FIELD(shrinkShare, 22700, 0, 1),
    WEIR_FIELD(nvlsCTAs, 22700, 1, INT_MAX),
    WEIR_FIELD(nChannelsPerNetPeer, 22800, 1, INT_MAX),
    WEIR_FIELD(nvlinkCentricSched, 22800, 0, 1),
    WEIR_FIELD(graphUsageMode, 22900, 0, 2),
    WEIR_FIELD(numRmaCtx, 22900, 0, INT_MAX),
    WEIR_FIELD(graphStreamOrdering, 23000, 0, 1),
    WEIR_FIELD(launchOrderImplicit, 23100, 0, 1),
    WEIR_FIELD(numRmaSig, 23100, 0, INT_MAX),
    WEIR_FIELD(rmaEagerInit, 23100, 0, 1),
    WEIR_FIELD(hostCftMode, 23100, ncclHostCftEnable, ncclHostCftFallback),
    WEIR_FIELD(nvlsHostMode, 23200, ncclNvlsHostModeEnable, kNvlsModesMax),
};
#undef WEIR_FIELD
constexpr size_t kNetNameEnd = offsetof(ncclConfig_t, netName) + sizeof(char*);
constexpr unsigned kNetNameSince = 21700;
constexpr size_t kCommNameEnd = offsetof(ncclConfig_t, commName) + sizeof(char*);
constexpr unsigned kCommNameSince = 22700;
constexpr size_t kConfigBytesMin = 24;  // 2.14, the first version that had one
constexpr size_t kNameCharactersMax = 256;
constexpr size_t kCallConfigBytesMin = offsetof(ncclCollConfig_t, launchCompletionEvent);  // 2.31
constexpr unsigned kLaunchEventSince = 23200;
constexpr size_t kEncryptionBytesMin = offsetof(ncclEncryptionConfig_t, mode);
// A structure that is larger is assumed to be damaged.
constexpr size_t kStructureBytesMax = 4096;

// The fields that a later version has behind those that this library knows. A field that is not set
// is 0 or NCCL_CONFIG_UNDEF_INT. (Padding in between is not looked at: nobody sets it.)
Outcome check_later_fields(const char* function, const char* what, const void* given, size_t size,
                           size_t known_bytes, unsigned version) {
  if (size > kStructureBytesMax) {
    return invalid_argument(fmt::format("{}: {}.size is {}, more than {} bytes: it is damaged",
                                        function, what, size, kStructureBytesMax));
  }
  for (size_t at = known_bytes; at + sizeof(int) <= size; at += sizeof(int)) {
    int value = 0;
    std::memcpy(&value, static_cast<const char*>(given) + at, sizeof value);
    if (value == 0 || value == NCCL_CONFIG_UNDEF_INT) continue;
    return invalid_argument(fmt::format(
        "{}: {} has a field at byte {} that this library does not know, and its value is {:#x}: "
        "the structure has {} bytes and version {}, this library knows {} bytes of version {}. "
        "Leave the field as the initializer sets it",
        function, what, at, static_cast<unsigned>(value), size, version, known_bytes,
        NCCL_VERSION_CODE));
  }
  return {};
}

}  // namespace

namespace {

// NCCL_COMM_BLOCKING, which takes precedence over every configuration; empty: it is not set.
std::optional<bool> blocking_of_environment() {
  const char* text = std::getenv("NCCL_COMM_BLOCKING");
  const std::string_view value = text != nullptr ? text : "";
  if (value != "0" && value != "1") return std::nullopt;
  return value == "1";
}

}  // namespace

Outcome check_head(const char* function, const char* what, const void* given, size_t least,
                   unsigned expected, const char* initializer) {
  Head head{};
  std::memcpy(&head.size, given, sizeof head.size);
  if (head.size < least) {
    return invalid_argument(fmt::format("{}: {}.size is {}, less than {}: start from {}", function,
                                        what, head.size, least, initializer));
  }
  std::memcpy(&head, given, sizeof head);
  if (head.magic != expected) {
    return invalid_argument(fmt::format("{}: {}.magic is {:#x}, not {:#x}: start from {}", function,
                                        what, head.magic, expected, initializer));
  }
  return {};
}

int64_t Config::timeout_ms() const {
  const char* text = std::getenv("WEIR_TIMEOUT_MS");
  const int64_t given = text != nullptr ? std::strtoll(text, nullptr, 10) : 0;
  return given > 0 ? given : kTimeoutMs;
}

bool Config::opens_signals_at_once() const {
  const char* set = std::getenv("NCCL_RMA_EAGER_INIT");
  return set != nullptr && *set != '\0' ? std::strcmp(set, "0") != 0 : rma_eager;
}

weir_comm_config_t Config::weir() const {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms();
  if (!name.empty()) config.name = name.c_str();
  config.flags |= WEIR_COMM_HOST_MEMORY;  // device memory is staged by this library
  config.flags |= WEIR_COMM_NCCL_ARITHMETIC;
  return config;
}

Config default_config() {
  Config config;
  config.blocking = blocking_of_environment().value_or(true);
  return config;
}

Outcome read_config(const char* function, const ncclConfig_t* given, Config* config) {
  if (given == nullptr) return {};
  Outcome head = check_head(function, "config", given, kConfigBytesMin, NCCL_API_MAGIC,
                            "NCCL_CONFIG_INITIALIZER");
  if (!head.ok()) return head;
  head = check_later_fields(function, "config", given, given->size, sizeof *given, given->version);
  if (!head.ok()) return head;
  ncclConfig_t own = NCCL_CONFIG_INITIALIZER;
  const size_t known_bytes = std::min(given->size, sizeof own);
  std::memcpy(static_cast<void*>(&own), given, known_bytes);
  auto value_of = [&](const IntField& field) {
    int value = NCCL_CONFIG_UNDEF_INT;
    if (field.offset + sizeof value <= known_bytes && own.version >= field.since) {
      std::memcpy(&value, reinterpret_cast<const char*>(&own) + field.offset, sizeof value);
    }
    return value;
  };
  int min_ctas = 1;
  int max_ctas = INT_MAX;
  int traffic_class = NCCL_CONFIG_UNDEF_INT;
  int ordering = 1;
  int usage = 0;
  for (const IntField& field : kFields) {
    const int value = value_of(field);
    if (value == NCCL_CONFIG_UNDEF_INT) continue;
    const bool disables_nvls =
        field.offset == offsetof(ncclConfig_t, nvlsHostMode) && value == ncclNvlsHostModeDisable;
    if ((value < field.min || value > field.max) && !disables_nvls) {
      return invalid_argument(
          fmt::format("{}: config.{} is {}, allowed are {} to {} and "
                      "NCCL_CONFIG_UNDEF_INT",
                      function, field.name, value, field.min, field.max));
    }
    if (field.offset == offsetof(ncclConfig_t, minCTAs)) min_ctas = value;
    if (field.offset == offsetof(ncclConfig_t, maxCTAs)) max_ctas = value;
    if (field.offset == offsetof(ncclConfig_t, trafficClass)) traffic_class = value;
    if (field.offset == offsetof(ncclConfig_t, graphStreamOrdering)) ordering = value;
    if (field.offset == offsetof(ncclConfig_t, graphUsageMode)) usage = value;
    if (field.offset == offsetof(ncclConfig_t, numRmaCtx)) config->rma_contexts = value;
    if (field.offset == offsetof(ncclConfig_t, numRmaSig)) config->rma_signals = value;
    if (field.offset == offsetof(ncclConfig_t, rmaEagerInit)) config->rma_eager = value != 0;
  }
  if (min_ctas > max_ctas) {
    return invalid_argument(fmt::format("{}: config.minCTAs {} is above config.maxCTAs {}",
                                        function, min_ctas, max_ctas));
  }
  if (ordering == 0 && usage == 2) {
    return invalid_argument(fmt::format(
        "{}: config.graphStreamOrdering 0 needs config.graphUsageMode 0 or 1, not 2", function));
  }
  const int blocking = value_of(kFields[0]);
  if (blocking != NCCL_CONFIG_UNDEF_INT && !blocking_of_environment().has_value()) {
    config->blocking = blocking != 0;
  }
  if (known_bytes >= kNetNameEnd && own.version >= kNetNameSince && own.netName != nullptr) {
    if (strnlen(own.netName, kNameCharactersMax + 1) > kNameCharactersMax) {
      return invalid_argument(fmt::format("{}: config.netName is longer than {} characters",
                                          function, kNameCharactersMax));
    }
    config->unheard = fmt::format("config.netName '{}'", own.netName);
  }
  if (traffic_class != NCCL_CONFIG_UNDEF_INT) {
    config->unheard +=
        fmt::format("{}config.trafficClass {}", config->unheard.empty() ? "" : ", ", traffic_class);
  }
  if (known_bytes >= kCommNameEnd && own.version >= kCommNameSince && own.commName != nullptr) {
    if (strnlen(own.commName, kNameCharactersMax + 1) > kNameCharactersMax) {
      return invalid_argument(fmt::format("{}: config.commName is longer than {} characters",
                                          function, kNameCharactersMax));
    }
    config->name = own.commName;
  }
  return {};
}

Outcome check_call_config(const char* function, const ncclCollConfig_t* config) {
  if (config == nullptr) return {};
  Outcome head = check_head(function, "config", config, kCallConfigBytesMin, NCCL_API_MAGIC,
                            "NCCL_COLLCONFIG_INITIALIZER");
  if (head.ok()) {
    head = check_later_fields(function, "config", config, config->size, sizeof *config,
                              config->version);
  }
  if (!head.ok()) return head;
  if (config->forceAlgSelection != 0 && config->forceAlgSelection != 1) {
    return invalid_argument(fmt::format("{}: config.forceAlgSelection is {}, not 0 or 1", function,
                                        config->forceAlgSelection));
  }
  if (config->CTAPolicy != NCCL_CONFIG_UNDEF_INT &&
      (config->CTAPolicy < 0 || config->CTAPolicy > 3)) {
    return invalid_argument(
        fmt::format("{}: config.CTAPolicy is {}, allowed are 0 to 3", function, config->CTAPolicy));
  }
  if (config->algSelection != nullptr && *config->algSelection != '\0' &&
      config->forceAlgSelection == 1) {
    return invalid_argument(fmt::format(
        "{}: config.algSelection '{}' names an algorithm for GPUs; on host memory set "
        "forceAlgSelection to 0, or choose with WEIR_ALGORITHM",
        function, std::string_view(config->algSelection, strnlen(config->algSelection, 64))));
  }
  return {};
}

cudaEvent_t launch_event_of(const ncclCollConfig_t* config) {
  const bool has =
      config != nullptr && config->size >= sizeof *config && config->version >= kLaunchEventSince;
  return has ? config->launchCompletionEvent : nullptr;
}

Outcome read_encryption(const char* function, const ncclEncryptionConfig_t* config,
                        const char** key) {
  *key = nullptr;
  if (config == nullptr) return {};
  Outcome outcome = check_head(function, "config", config, kEncryptionBytesMin, NCCL_API_MAGIC,
                               "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
  if (outcome.ok()) {
    outcome = check_later_fields(function, "config", config, config->size, sizeof *config,
                                 config->version);
  }
  if (!outcome.ok()) return outcome;
  ncclEncryptionConfig_t own = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  std::memcpy(&own, config, std::min(config->size, sizeof own));
  if (own.mode == NCCL_ENCRYPTION_MODE_NONE) return {};
  if (own.mode != NCCL_ENCRYPTION_MODE_PSK) {
    return invalid_argument(
        fmt::format("{}: config.mode is {}, neither NCCL_ENCRYPTION_MODE_NONE ({}) nor "
                    "NCCL_ENCRYPTION_MODE_PSK ({})",
                    function, own.mode, static_cast<int>(NCCL_ENCRYPTION_MODE_NONE),
                    static_cast<int>(NCCL_ENCRYPTION_MODE_PSK)));
  }
  if (own.psk == nullptr) {
    return invalid_argument(fmt::format(
        "{}: config.mode is NCCL_ENCRYPTION_MODE_PSK and config.psk is NULL", function));
  }
  *key = own.psk;
  return {};
}

Outcome check_sim_info(const char* function, const ncclSimInfo_t* info) {
  if (info == nullptr) return {};
  return check_head(function, "simInfo", info, sizeof(ncclSimInfo_t), kSimInfoMagic,
                    "NCCL_SIM_INFO_INITIALIZER");
}

}  // namespace weir::nccl
