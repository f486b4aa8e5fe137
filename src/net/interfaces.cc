// SPDX-License-Identifier: Apache-2.0
#include "net/interfaces.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "net/auth.h"

namespace weir::net {
namespace {

constexpr size_t kNameBytesMax = IFNAMSIZ - 1;
constexpr size_t kNamesMax = 64;

// The first bytes of a small file; the count.
size_t read_start(const std::string& path, char* out, size_t bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = read(fd, out, bytes);
  close(fd);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

uint32_t speed_of(const std::string& name) {
  char text[32] = {};
  read_start("/sys/class/net/" + name + "/speed", text, sizeof text - 1);
  const long speed = strtol(text, nullptr, 10);
  return speed > 0 && speed < (1L << 30) ? static_cast<uint32_t>(speed) : 0;
}

uint32_t count_bits(const sockaddr* mask) {
  const IpAddress bits = from_sockaddr(mask);
  uint32_t count = 0;
  for (const unsigned char byte : bits.bytes) count += static_cast<uint32_t>(std::popcount(byte));
  return count;
}

bool is_link_local(const IpAddress& a) {
  if (a.family == 4) return a.bytes[0] == 169 && a.bytes[1] == 254;
  return a.bytes[0] == 0xfe && (a.bytes[1] & 0xc0) == 0x80;
}

}  // namespace

bool InterfaceFilter::parse(std::string_view text, InterfaceFilter* filter, std::string* reason) {
  InterfaceFilter made;
  made.text_ = text;
  std::string_view rest = text;
  if (rest.starts_with('^')) {
    made.excludes_ = true;
    rest.remove_prefix(1);
  }
  if (rest.starts_with('=')) {
    made.exact_ = true;
    rest.remove_prefix(1);
  }
  if (rest.empty() && !text.empty()) {
    *reason = "it names no interface";
    return false;
  }
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const bool printable = std::all_of(name.begin(), name.end(),
                                       [](char c) { return c > ' ' && c < 0x7f && c != '/'; });
    if (name.empty() || name.size() > kNameBytesMax || !printable) {
      *reason = "an element is not the beginning of an interface's name";
      return false;
    }
    if (made.names_.size() == kNamesMax) {
      *reason = "it names more than " + std::to_string(kNamesMax) + " interfaces";
      return false;
    }
    made.names_.emplace_back(name);
  }
  *filter = std::move(made);
  return true;
}

bool InterfaceFilter::matches(std::string_view name) const {
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& wanted) {
    return exact_ ? name == wanted : name.starts_with(wanted);
  });
}

bool InterfaceFilter::allows(std::string_view name) const {
  return names_.empty() || matches(name) != excludes_;
}

bool InterfaceFilter::set_family(std::string_view name) {
  if (name == "AF_INET") family_ = 4;
  if (name == "AF_INET6") family_ = 6;
  return name.empty() || name == "AF_INET" || name == "AF_INET6";
}

bool filter_from(const char* weir_ifname, const char* nccl_socket_ifname, InterfaceFilter* filter,
                 std::string* reason) {
  const bool ours = weir_ifname != nullptr && *weir_ifname != 0;
  const char* text = ours ? weir_ifname : nccl_socket_ifname;
  std::string why;
  if (InterfaceFilter::parse(text != nullptr ? text : "", filter, &why)) {
    const char* family = std::getenv("NCCL_SOCKET_FAMILY");
    if (filter->set_family(family != nullptr ? family : "")) return true;
    *reason = std::string("NCCL_SOCKET_FAMILY is '") + family + "', not AF_INET or AF_INET6";
    return false;
  }
  *reason = std::string(ours ? "WEIR_IFNAME" : "NCCL_SOCKET_IFNAME") + ": " + why +
            "; write eth,ib for prefixes, =eth0 for a name, ^ to exclude";
  return false;
}

bool list_interfaces(const InterfaceFilter& filter, std::vector<Interface>* interfaces,
                     std::string* reason) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) {
    *reason = std::string("getifaddrs: ") + strerror(errno);
    return false;
  }
  interfaces->clear();
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_name == nullptr) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_RUNNING) == 0) continue;
    Interface found;
    found.name = one->ifa_name;
    found.address = from_sockaddr(one->ifa_addr);
    found.is_loopback = (one->ifa_flags & IFF_LOOPBACK) != 0;
    if (!found.address.is_host() || is_link_local(found.address) || !filter.allows(found.name) ||
        !filter.allows_family(found.address.family)) {
      continue;
    }
    found.prefix_bits = count_bits(one->ifa_netmask);
    found.speed_mbits = found.is_loopback ? 0 : speed_of(found.name);
    interfaces->push_back(std::move(found));
  }
  freeifaddrs(all);
  std::stable_sort(interfaces->begin(), interfaces->end(),
                   [](const Interface& a, const Interface& b) {
                     if (a.is_loopback != b.is_loopback) return b.is_loopback;
                     if (a.speed_mbits != b.speed_mbits) return a.speed_mbits > b.speed_mbits;
                     return a.address.family < b.address.family;
                   });
  return true;
}

std::string boot_id() {
  constexpr size_t kTextBytes = 36;
  constexpr size_t kWords = (kTextBytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  // Words of the text; 0: not read yet. No lock, which a fork could leave taken.
  static constinit std::array<std::atomic<uint64_t>, kWords> known{};
  std::array<uint64_t, kWords> words{};
  for (size_t i = 0; i < kWords; ++i) words[i] = known[i].load(std::memory_order_acquire);
  char text[sizeof words] = {};
  if (std::count(words.begin(), words.end(), uint64_t{0}) == 0) {
    std::memcpy(text, words.data(), sizeof text);
    return std::string(text, kTextBytes);
  }
  if (read_start("/proc/sys/kernel/random/boot_id", text, kTextBytes) != kTextBytes) return "";
  std::memcpy(words.data(), text, sizeof text);
  for (size_t i = 0; i < kWords; ++i) known[i].store(words[i], std::memory_order_release);
  return std::string(text, kTextBytes);
}

HostIdentity this_host() {
  HostIdentity identity;
  size_t digits = 0;
  for (const char c : boot_id()) {
    const char* hex = "0123456789abcdef";
    const char* found = c != 0 ? strchr(hex, c) : nullptr;
    if (found == nullptr || digits == 32) continue;
    const auto value = static_cast<unsigned char>(found - hex);
    unsigned char& byte = identity.bytes[digits / 2];
    byte = static_cast<unsigned char>(digits % 2 == 0 ? value << 4 : byte | value);
    ++digits;
  }
  if (digits == 0) return identity;
  struct stat status;
  if (stat("/proc/thread-self/ns/net", &status) == 0) {
    const uint64_t number = status.st_ino;
    std::memcpy(identity.bytes.data() + 16, &number, sizeof number);
  }
  return identity;
}

HostIdentity declared_host(const char* weir_host_id, const char* nccl_hostid) {
  const char* id = weir_host_id != nullptr && weir_host_id[0] != 0 ? weir_host_id : nccl_hostid;
  if (id == nullptr || id[0] == 0) return this_host();
  constexpr std::string_view kPurpose = "weir host";
  const Mac mac = hmac_sha256(kPurpose.data(), kPurpose.size(), id, strlen(id));
  HostIdentity identity;
  std::memcpy(identity.bytes.data(), mac.data(), identity.bytes.size());
  return identity;
}

}  // namespace weir::net
