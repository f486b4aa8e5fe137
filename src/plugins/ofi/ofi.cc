// SPDX-License-Identifier: Apache-2.0
// The transport `ofi`: ranks on one or many hosts, over libfabric. See docs/transports.md.
#include <string>
#include <vector>

#include "plugins/common/config.h"
#include "plugins/common/table.h"
#include "plugins/ofi/instance.h"
#include "plugins/ofi/library.h"
#include "plugins/ofi/providers.h"

namespace weir::plugins::ofi {

bool Instance::viable(const weir_host_t* host, std::string* text) {
  const Report report = {host, kName};
  const Library* library = load_library(text);
  std::vector<std::string> names;
  bool tls = false;
  if (library == nullptr ||
      !list_providers(*library, report.setting("WEIR_OFI_PROVIDER"), &names, text) ||
      !message::read_tls(report, &tls, text)) {
    return false;
  }
  const uint32_t version = library->version();
  *text = "libfabric " + text_of(FI_MAJOR(version)) + "." + text_of(FI_MINOR(version)) + ": ";
  for (size_t i = 0; i < names.size(); ++i) *text += (i == 0 ? "" : ", else ") + names[i];
  if (tls) *text += "; control connections inside TLS 1.3";
  return true;
}

weir_result_t Instance::open(const weir_host_t* host, const weir_transport_config_t& config,
                             std::unique_ptr<Instance>* made) {
  std::string reason;
  const Library* library = load_library(&reason);
  if (library == nullptr) {
    return Report{host, kName}.fail(WEIR_ERROR_UNSUPPORTED, reason);
  }
  auto self = std::make_unique<Instance>(*library);
  self->comm_id_ = config.comm_id;
  self->cards_ = common::names_in(config.domain);
  self->key_proof_ = remote::proof_key(config.secret, config.secret_bytes, kName, config.comm_id);
  weir_result_t result = self->begin(host, kName, config);
  if (result == WEIR_OK) result = self->find_providers();
  *made = std::move(self);
  return result;
}

namespace {

constexpr uint32_t kCredit = 8;

constexpr weir_transport_functions_t kFunctions = common::table_of<Instance>(
    "ranks on one or many hosts, over libfabric's reliable datagram endpoints",
    {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_QUIESCE |
             WEIR_CAP_DEVICE_MEMORY | WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL,
     .memory_kinds = WEIR_MEMORY_HOST | WEIR_MEMORY_CUDA,
     .lane_count = kLaneCount,
     .message_bytes_max = kMessageBytesMax,
     .rank_count_max = kRankCountMax,
     .credit = kCredit});

}  // namespace
}  // namespace weir::plugins::ofi

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void) {
  return &weir::plugins::ofi::kFunctions;
}
