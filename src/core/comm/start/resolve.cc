// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/resolve.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/bounded_call.h"

namespace weir::comm {
namespace {

constexpr size_t kHostBytesMax = 255;

bool parse_address(const std::string& text, net::IpAddress* address) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) {
    address->family = 4;
    std::memcpy(address->bytes.data(), &four, sizeof four);
    return true;
  }
  if (inet_pton(AF_INET6, text.c_str(), &six) == 1) {
    address->family = 6;
    std::memcpy(address->bytes.data(), &six, sizeof six);
    return true;
  }
  return false;
}

std::vector<net::IpAddress> ask_system(const std::string& host, std::string* error) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<net::IpAddress> addresses;
  const int result = getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (result != 0) {
    *error = gai_strerror(result);
    return addresses;
  }
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    addresses.push_back(net::from_sockaddr(one->ai_addr));
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

Result<std::vector<net::IpAddress>> resolve(const std::string& host, uint64_t deadline_ns,
                                            const Lookup& lookup) {
  if (host.empty() || host.size() > kHostBytesMax ||
      !std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < 0x7f; })) {
    return invalid_argument("a host name is empty, too long, or has an invalid character");
  }
  struct Answer {
    std::vector<net::IpAddress> addresses;
    std::string error;
  };
  auto answer = std::make_shared<Answer>();
  net::IpAddress literal;
  if (parse_address(host, &literal)) {
    answer->addresses = {literal};
  } else {
    const Lookup ask = lookup ? lookup : ask_system;
    const bool answered = run_bounded(
        [answer, ask, host] { answer->addresses = ask(host, &answer->error); }, deadline_ns);
    if (!answered) {
      return Status(
          Code::kTimeout,
          fmt::format("timed out: the name service did not resolve host '{}' in time; give an IP "
                      "address instead, or check the name service of this machine",
                      host));
    }
  }
  std::vector<net::IpAddress> addresses;
  for (const net::IpAddress& one : answer->addresses) {
    if (one.is_host() && std::find(addresses.begin(), addresses.end(), one) == addresses.end()) {
      addresses.push_back(one);
    }
  }
  if (addresses.empty()) {
    return invalid_argument(fmt::format(
        "host '{}' has no address: {}", host,
        answer->error.empty() ? "the name service returned no unicast address" : answer->error));
  }
  return addresses;
}

}  // namespace weir::comm
