// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this host that may be used, and their addresses. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "net/ip_address.h"

namespace weir::net {

struct Interface {
  std::string name;  // "eth0"
  IpAddress address;
  uint32_t prefix_bits = 0;
  uint32_t speed_mbits = 0;  // 0: the kernel does not say
  bool is_loopback = false;
};

// The syntax of NCCL_SOCKET_IFNAME:
//
//   eth,ib      interfaces whose names begin with eth or ib
//   =eth0,ib0   exactly eth0 and ib0
//   ^docker     all but those that begin with docker
//   ^=eth1      all but eth1
//
// An empty text allows every interface. Loopback is asked for only by a list that names it.
class InterfaceFilter {
 public:
  InterfaceFilter() = default;
  // False with the reason, when an element is empty, too long or has a character that no name has.
  static bool parse(std::string_view text, InterfaceFilter* filter, std::string* reason);

  bool allows(std::string_view name) const;
  // The list names the interfaces that may be used, and this is one of them.
  bool asks_for(std::string_view name) const { return named() && allows(name); }
  bool named() const { return !names_.empty() && !excludes_; }
  const std::string& text() const { return text_; }

  // NCCL_SOCKET_FAMILY, AF_INET or AF_INET6: addresses of this family only. False: it is neither.
  bool set_family(std::string_view name);
  bool allows_family(int family) const { return family_ == 0 || family == family_; }

 private:
  bool matches(std::string_view name) const;

  std::string text_;
  std::vector<std::string> names_;
  bool excludes_ = false;
  bool exact_ = false;
  int family_ = 0;  // 4 or 6, as IpAddress; 0: any
};

// WEIR_IFNAME if it is set, else NCCL_SOCKET_IFNAME; and the family of NCCL_SOCKET_FAMILY. Null or
// empty: not set.
bool filter_from(const char* weir_ifname, const char* nccl_socket_ifname, InterfaceFilter* filter,
                 std::string* reason);

// Addresses of interfaces that are up and allowed: first the fastest, loopback last, IPv4 before
// IPv6 on each. Link-local addresses are left out: they mean nothing to another host without a
// scope. False with the reason when the kernel cannot be asked.
bool list_interfaces(const InterfaceFilter& filter, std::vector<Interface>* interfaces,
                     std::string* reason);

// Identifies a host: the running kernel and the network namespace of the calling thread. Zero where
// the kernel does not identify itself.
struct HostIdentity {
  std::array<unsigned char, 24> bytes{};
  bool known() const { return *this != HostIdentity(); }
  bool operator==(const HostIdentity&) const = default;
};
HostIdentity this_host();

// The kernel's name for this run of the machine, 36 characters; "": it cannot be read. Read once in
// a process.
std::string boot_id();

// The host to which this process belongs when ranks are grouped by host: made from `id`
// (WEIR_HOST_ID, else NCCL_HOSTID) where one is set, else this_host(). Null or empty: not set.
HostIdentity declared_host(const char* weir_host_id, const char* nccl_hostid);

}  // namespace weir::net
