// SPDX-License-Identifier: Apache-2.0
// Which of libfabric's providers can carry this transport here, in order of preference. Pure
// functions over what libfabric says; thread-safe.
//
// A provider is usable when it has reliable datagram endpoints (FI_EP_RDM) with tagged messages and
// asks for no more than this transport does: contexts (FI_CONTEXT, FI_CONTEXT2) and the memory
// registration modes kRegistrationModes.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/ip_address.h"
#include "plugins/ofi/library.h"

namespace weir::plugins::ofi {

inline constexpr uint32_t kApiVersion = FI_VERSION(1, 9);
inline constexpr uint32_t kDeviceApiVersion =
    FI_VERSION(1, 10);  // FI_HMEM, and the device in fi_mr_attr
inline constexpr int kRegistrationModes =
    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
// All names of a rank, with commas, have to fit into its address.
inline constexpr size_t kProviderListBytesMax = 80;

struct InfoDeleter {
  const Library* library;
  void operator()(fi_info* info) const { library->freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, InfoDeleter>;

// The kinds of providers.
enum class ProviderClass : uint8_t {
  kHardware,  // its own network
  kStream,    // software over the kernel's TCP
  kMemory,    // software over shared memory: ranks of one host only
  kFallback,  // software that is slow, or that we do not know or do not trust
};
ProviderClass class_of(std::string_view name);

// `names` are what libfabric offers, in its order and perhaps several times; each once, the best
// first: hardware in libfabric's order; then TCP; then shared memory, which is left behind in
// /dev/shm by a process that is killed; then sockets, which is slow. Others are left out: they are
// not known, or known to hang or to report nothing where this transport must not. With `wanted` (a
// comma list, or null) only those that it names, in its order, whatever they are.
std::vector<std::string> order_providers(const std::vector<std::string>& names, const char* wanted);

// The usable providers of this machine. False with the reason and the remedy when there are none.
bool list_providers(const Library& library, const char* wanted, std::vector<std::string>* names,
                    std::string* reason);

// The first provider of `lists[0]` that every list has, or "". `one_host`: those that need one host
// are allowed.
std::string common_provider(const std::vector<std::vector<std::string>>& lists, bool one_host);

// What libfabric offers of a provider, bound to the local address `source` where the provider has
// IP addresses. Of its domains, that of the first of `cards` (is_of_card) that
// has one with the addresses of the first domain; then `source` does not matter. `devices`: with memory of devices (FI_HMEM) where it has that, as its caps then
// tell. Null with the reason.
Info find_provider(const Library& library, const std::string& name, const net::IpAddress& source,
                   const std::vector<std::string>& cards, bool devices, std::string* reason);

// Whether the domain is over the verbs device `card`: the card's name is the device's, or the
// domain's, or what precedes "-" there.
bool is_of_card(const fi_info& info, std::string_view card);

// "a,b" <-> {"a", "b"}
std::string join_names(const std::vector<std::string>& names);
std::vector<std::string> split_names(std::string_view text);

}  // namespace weir::plugins::ofi
