// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/providers.h"

#include <rdma/fi_endpoint.h>
#include <string.h>

#include <algorithm>

namespace weir::plugins::ofi {
namespace {

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The provider under a layer of libfabric's own: "verbs" of "verbs;ofi_rxm".
std::string_view core_of(std::string_view name) { return name.substr(0, name.find(';')); }

constexpr uint32_t kByNameOnly = 5;

uint32_t place_of(std::string_view name) {
  switch (class_of(name)) {
    case ProviderClass::kHardware:
      return name.ends_with(";ofi_rxd") ? 1 : 0;
    case ProviderClass::kStream:
      return 2;
    case ProviderClass::kMemory:
      return 3;
    case ProviderClass::kFallback:
      return name == "sockets" ? 4 : kByNameOnly;
  }
  return kByNameOnly;
}

// What is requested beyond reliable tagged messages.
struct RequestedCaps {
  bool one_sided = false;
  bool devices = false;
};

Info make_hints(const Library& library, const std::string& name, const RequestedCaps& requested) {
  Info hints(library.dupinfo(nullptr), InfoDeleter{&library});
  if (hints == nullptr) return hints;
  hints->caps = FI_TAGGED;
  if (requested.one_sided) {
    hints->caps |= FI_MSG | FI_RMA;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
  }
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = kRegistrationModes;
  if (requested.devices) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  // The core calls progress; a thread of the provider would take a core from the ranks. But
  // operations of `sockets` need that thread to move while their rank makes no call.
  const fi_progress progress = name == "sockets" ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
  hints->domain_attr->control_progress = progress;
  hints->domain_attr->data_progress = progress;
  if (!name.empty()) {
    hints->fabric_attr->prov_name = strdup(name.c_str());
    if (hints->fabric_attr->prov_name == nullptr) hints.reset();
  }
  return hints;
}

Info ask_for(const Library& library, const std::string& name, const char* source,
             const RequestedCaps& requested, int* error) {
  const Info hints = make_hints(library, name, requested);
  Info found(nullptr, InfoDeleter{&library});
  *error = -FI_ENOMEM;
  if (hints == nullptr) return found;
  // Providers start up within the first call, and may install signal handlers, as loading the
  // library does.
  const SignalHandlersKept kept;
  fi_info* list = nullptr;
  *error = library.getinfo(requested.devices ? kDeviceApiVersion : kApiVersion, source, nullptr,
                           source != nullptr ? FI_SOURCE | FI_NUMERICHOST : 0, hints.get(), &list);
  found.reset(*error == 0 ? list : nullptr);
  return found;
}

// With one-sided operations where the provider has them; with memory of devices, where that is
// wanted, as far as it costs none of those.
Info ask(const Library& library, const std::string& name, const char* source, bool devices,
         int* error) {
  Info found(nullptr, InfoDeleter{&library});
  for (const bool one_sided : {true, false}) {
    if (one_sided && name.empty()) continue;
    if (devices) found = ask_for(library, name, source, {one_sided, true}, error);
    if (found == nullptr) found = ask_for(library, name, source, {one_sided, false}, error);
    if (found != nullptr) break;
  }
  return found;
}

bool is_ip(const fi_info& info) {
  return info.addr_format == FI_SOCKADDR || info.addr_format == FI_SOCKADDR_IN ||
         info.addr_format == FI_SOCKADDR_IN6;
}

}  // namespace

ProviderClass class_of(std::string_view name) {
  const std::string_view core = core_of(name);
  for (const std::string_view known :
       {"cxi", "efa", "verbs", "opx", "psm3", "psm2", "psm", "gni", "bgq", "usnic", "ucx", "hns"}) {
    if (core == known) return ProviderClass::kHardware;
  }
  if (name == "tcp;ofi_rxm") return ProviderClass::kStream;
  if (core == "shm" || core == "sm2") return ProviderClass::kMemory;
  return ProviderClass::kFallback;
}

std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) names.emplace_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return names;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::vector<std::string> order_providers(const std::vector<std::string>& names,
                                         const char* wanted) {
  std::vector<std::string> ordered;
  if (wanted != nullptr) {
    for (const std::string& name : split_names(wanted)) {
      if (contains(names, name) && !contains(ordered, name)) ordered.push_back(name);
    }
    return ordered;
  }
  for (const std::string& name : names) {
    if (!contains(ordered, name) && place_of(name) != kByNameOnly) ordered.push_back(name);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const std::string& a, const std::string& b) {
    return place_of(a) < place_of(b);
  });
  return ordered;
}

bool list_providers(const Library& library, const char* wanted, std::vector<std::string>* names,
                    std::string* reason) {
  int error = 0;
  const Info list = ask(library, "", nullptr, false, &error);
  std::vector<std::string> offered;
  for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
    const char* name = info->fabric_attr != nullptr ? info->fabric_attr->prov_name : nullptr;
    if (name != nullptr && !contains(offered, name)) offered.emplace_back(name);
  }
  *names = order_providers(offered, wanted);
  // What does not fit into an address is left out from the end.
  while (join_names(*names).size() > kProviderListBytesMax) names->pop_back();
  if (!names->empty()) return true;
  const uint32_t version = library.version();
  *reason = "libfabric " + std::to_string(FI_MAJOR(version)) + "." +
            std::to_string(FI_MINOR(version)) + " offers no provider with reliable tagged messages";
  if (wanted != nullptr) *reason += " of WEIR_OFI_PROVIDER=" + std::string(wanted);
  if (!offered.empty()) *reason += "; it offers " + join_names(offered);
  if (error != 0 && offered.empty()) *reason += " (" + library.reason(error) + ")";
  const char* filter = getenv("FI_PROVIDER");
  *reason += filter != nullptr ? "; FI_PROVIDER is set to " + std::string(filter)
                               : "; fi_info -t FI_EP_RDM lists the providers";
  return false;
}

std::string common_provider(const std::vector<std::vector<std::string>>& lists, bool one_host) {
  if (lists.empty()) return "";
  for (const std::string& name : lists[0]) {
    if (!one_host && class_of(name) == ProviderClass::kMemory) continue;
    if (std::all_of(lists.begin(), lists.end(),
                    [&](const std::vector<std::string>& list) { return contains(list, name); })) {
      return name;
    }
  }
  return "";
}

bool is_of_card(const fi_info& info, std::string_view card) {
  const auto is_it = [&](const char* name) {
    if (name == nullptr || card.empty()) return false;
    const std::string_view text = name;
    return text.starts_with(card) && (text.size() == card.size() || text[card.size()] == '-');
  };
  const char* device = info.nic != nullptr && info.nic->device_attr != nullptr
                           ? info.nic->device_attr->name
                           : nullptr;
  return is_it(device) || is_it(info.domain_attr != nullptr ? info.domain_attr->name : nullptr);
}

Info find_provider(const Library& library, const std::string& name, const net::IpAddress& source,
                   const std::vector<std::string>& cards, bool devices, std::string* reason) {
  int error = 0;
  Info first = ask(library, name, nullptr, devices, &error);
  // A name may be a prefix of another one's layering; only the very one is meant.
  const auto is_it = [&](const fi_info& info) { return name == info.fabric_attr->prov_name; };
  const auto only = [&](Info list) {
    Info found(nullptr, InfoDeleter{&library});
    for (const fi_info* info = list.get(); info != nullptr && found == nullptr; info = info->next) {
      if (is_it(*info)) found.reset(library.dupinfo(info));
    }
    return found;
  };
  const fi_info* leading = nullptr;
  for (const fi_info* info = first.get(); info != nullptr && leading == nullptr;
       info = info->next) {
    if (is_it(*info)) leading = info;
  }
  for (const std::string& card : cards) {
    for (const fi_info* info = leading; info != nullptr; info = info->next) {
      if (is_it(*info) && info->addr_format == leading->addr_format && is_of_card(*info, card)) {
        return Info(library.dupinfo(info), InfoDeleter{&library});
      }
    }
  }
  const bool ip = first != nullptr && is_ip(*first);
  if (ip && source.valid()) {
    int ignored = 0;
    Info bound = only(ask(library, name, to_string(source).c_str(), devices, &ignored));
    // Hardware may have another network than the one on which the ranks found each other.
    if (bound != nullptr || class_of(name) != ProviderClass::kHardware) {
      if (bound == nullptr) {
        *reason = "provider " + name + " cannot use the address " + to_string(source) + " (" +
                  library.reason(ignored) + ")";
      }
      return bound;
    }
  }
  Info found = only(std::move(first));
  if (found == nullptr) *reason = "provider " + name + " is gone (" + library.reason(error) + ")";
  return found;
}

}  // namespace weir::plugins::ofi
