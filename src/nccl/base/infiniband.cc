// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/infiniband.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace weir::nccl {

namespace {

constexpr int kAnyPort = -1;

bool parse_port(std::string_view text, int* port) {
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, *port);
  return !text.empty() && problem == std::errc() && stop == end;
}

// One entry of the list, DEVICE[:PORT[:RAIL[:PLANE]]] with a port that may be empty. Rails and
// planes are names that NCCL gives to devices, and select nothing.
bool matches(std::string_view one, bool exact, const InfinibandPort& port) {
  int wanted = kAnyPort;
  const size_t colon = one.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view rest = one.substr(colon + 1);
    const std::string_view number = rest.substr(0, rest.find(':'));
    const bool any = number.empty() && number.size() < rest.size();
    if (!any && !parse_port(number, &wanted)) return false;
  }
  const std::string_view name = one.substr(0, colon);
  if (name.empty() || (wanted != kAnyPort && wanted != port.port)) return false;
  return exact ? port.device == name : port.device.starts_with(name);
}

}  // namespace

std::string InfinibandPort::text() const { return device + ":" + std::to_string(port); }

std::vector<InfinibandPort> infiniband_ports(const std::string& folder) {
  std::vector<InfinibandPort> all;
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = device.path().filename().string();
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", ignored)) {
      int number = 0;
      if (parse_port(port.path().filename().string(), &number)) all.push_back({name, number});
    }
  }
  std::sort(all.begin(), all.end(), [](const InfinibandPort& a, const InfinibandPort& b) {
    return a.device != b.device ? a.device < b.device : a.port < b.port;
  });
  return all;
}

std::vector<InfinibandPort> allowed_ports(std::string_view filter,
                                          const std::vector<InfinibandPort>& all) {
  const bool excludes = filter.starts_with('^');
  if (excludes) filter.remove_prefix(1);
  const bool exact = filter.starts_with('=');
  if (exact) filter.remove_prefix(1);
  std::vector<InfinibandPort> allowed;
  for (const InfinibandPort& port : all) {
    bool named = false;
    for (std::string_view rest = filter; !rest.empty() && !named;) {
      const size_t comma = rest.find(',');
      named = matches(rest.substr(0, comma), exact, port);
      rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    }
    if (named != excludes) allowed.push_back(port);
  }
  return allowed;
}

}  // namespace weir::nccl
