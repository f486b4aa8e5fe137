// SPDX-License-Identifier: Apache-2.0
#include "core/sim/network.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <array>
#include <cmath>

#include "core/base/private_files.h"
#include "core/cost/table.h"

namespace weir::sim {
namespace {

constexpr size_t kNetworkFileBytesMax = 1 << 20;
constexpr double kNsMax = 1e9;
constexpr double kNsPerByteMax = 1e6;
constexpr uint32_t kRailsMax = 1024;

template <typename Owner>
struct Field {
  const char* key;
  double Owner::*member;
  double limit;
};

constexpr std::array<Field<Level>, 7> kLevelFields = {{
    {"latency_ns", &Level::latency_ns, kNsMax},
    {"send_overhead_ns", &Level::send_overhead_ns, kNsMax},
    {"recv_overhead_ns", &Level::recv_overhead_ns, kNsMax},
    {"gap_ns", &Level::gap_ns, kNsMax},
    {"ns_per_byte", &Level::ns_per_byte, kNsPerByteMax},
    {"signal_ns", &Level::signal_ns, kNsMax},
    {"remote_ns_per_byte", &Level::remote_ns_per_byte, kNsPerByteMax},
}};
constexpr std::array<Field<Nic>, 2> kNicFields = {{
    {"gap_ns", &Nic::gap_ns, kNsMax},
    {"ns_per_byte", &Nic::ns_per_byte, kNsPerByteMax},
}};
constexpr std::array<Field<Network>, 2> kNetworkFields = {{
    {"copy_ns_per_byte", &Network::copy_ns_per_byte, kNsPerByteMax},
    {"reduce_ns_per_byte", &Network::reduce_ns_per_byte, kNsPerByteMax},
}};

bool in_range(double value, double limit) {
  return std::isfinite(value) && value >= 0 && value <= limit;
}

template <typename Owner, size_t N>
Status validate_fields(const char* where, const Owner& owner,
                       const std::array<Field<Owner>, N>& fields) {
  for (const Field<Owner>& field : fields) {
    const double value = owner.*field.member;
    if (!in_range(value, field.limit)) {
      return invalid_argument(fmt::format("network: {}{} is {}; allowed is 0 to {}", where,
                                          field.key, value, field.limit));
    }
  }
  return {};
}

Status at(const std::string& file, const toml::source_region& source, const std::string& reason) {
  return invalid_argument(fmt::format("{}:{}: {}", file, source.begin.line, reason));
}

template <typename Owner, size_t N>
const Field<Owner>* find_field(const std::array<Field<Owner>, N>& fields, std::string_view key) {
  for (const Field<Owner>& field : fields) {
    if (key == field.key) return &field;
  }
  return nullptr;
}

template <typename Owner>
Status read_number(const std::string& file, std::string_view key, const toml::node& node,
                   const Field<Owner>& field, Owner* owner) {
  const auto value = node.is_number() ? node.template value<double>() : std::nullopt;
  if (!value) return at(file, node.source(), fmt::format("'{}' needs a number", key));
  if (!in_range(*value, field.limit)) {
    return at(file, node.source(),
              fmt::format("'{}' is {}; allowed is 0 to {}", key, *value, field.limit));
  }
  owner->*field.member = *value;
  return {};
}

template <typename Owner, size_t N>
Status read_table(const std::string& file, std::string_view name, const toml::node& node,
                  const std::array<Field<Owner>, N>& fields, Owner* owner, Nic* nic) {
  const toml::table* table = node.as_table();
  if (table == nullptr) {
    return at(file, node.source(), fmt::format("'{}' needs a table: [{}]", name, name));
  }
  for (const auto& [key, value] : *table) {
    if (nic != nullptr && key.str() == "rails") {
      const auto rails = value.is_integer() ? value.template value<int64_t>() : std::nullopt;
      if (!rails || *rails < 1 || *rails > kRailsMax) {
        return at(file, value.source(),
                  fmt::format("'rails' needs an integer from 1 to {}", kRailsMax));
      }
      nic->rails = static_cast<uint32_t>(*rails);
      continue;
    }
    const Field<Owner>* field = find_field(fields, key.str());
    if (field == nullptr) {
      return at(file, value.source(), fmt::format("unknown key '{}' in [{}]", key.str(), name));
    }
    WEIR_RETURN_IF_ERROR(read_number(file, key.str(), value, *field, owner));
  }
  return {};
}

}  // namespace

Status validate(const Network& network) {
  WEIR_RETURN_IF_ERROR(validate_fields("intra_node.", network.intra_node, kLevelFields));
  WEIR_RETURN_IF_ERROR(validate_fields("inter_node.", network.inter_node, kLevelFields));
  WEIR_RETURN_IF_ERROR(validate_fields("nic.", network.nic, kNicFields));
  WEIR_RETURN_IF_ERROR(validate_fields("", network, kNetworkFields));
  if (network.nic.rails < 1 || network.nic.rails > kRailsMax) {
    return invalid_argument(
        fmt::format("network: nic.rails is {}; allowed is 1 to {}", network.nic.rails, kRailsMax));
  }
  return {};
}

Network uniform_network(const Level& level, double copy_ns_per_byte, double reduce_ns_per_byte) {
  return Network{.intra_node = level,
                 .inter_node = level,
                 .nic = Nic{.rails = 1, .gap_ns = 0, .ns_per_byte = 0},
                 .copy_ns_per_byte = copy_ns_per_byte,
                 .reduce_ns_per_byte = reduce_ns_per_byte};
}

Network accelerator_network() {
  const cost::TaskTimes times = cost::device_table().times;
  const auto level = [&](cost::Link link) {
    return Level{.latency_ns = 0,
                 .send_overhead_ns = times.link(link).send_ns,
                 .recv_overhead_ns = times.link(link).recv_ns,
                 .gap_ns = 0,
                 .ns_per_byte = 0,
                 .signal_ns = times.link(link).signal_ns,
                 .remote_ns_per_byte = 0};
  };
  return Network{.intra_node = level(cost::Link::kShmSharedCache),
                 .inter_node = level(cost::Link::kFabric),
                 .nic = {.rails = 1, .gap_ns = 0, .ns_per_byte = 0},
                 .copy_ns_per_byte = times.reduce_of(1, cost::Regime::kDram),
                 .reduce_ns_per_byte = times.reduce_of(2, cost::Regime::kDram)};
}

Result<Network> parse_network(const std::string& text, const std::string& file_name,
                              const Network& defaults) {
  Network network = defaults;
  toml::table document;
  try {
    document = toml::parse(text, file_name);
  } catch (const toml::parse_error& error) {
    return at(file_name, error.source(), std::string(error.description()));
  }
  for (const auto& [key, value] : document) {
    const std::string_view name = key.str();
    Status status;
    if (name == "intra_node") {
      status =
          read_table<Level>(file_name, name, value, kLevelFields, &network.intra_node, nullptr);
    } else if (name == "inter_node") {
      status =
          read_table<Level>(file_name, name, value, kLevelFields, &network.inter_node, nullptr);
    } else if (name == "nic") {
      status = read_table<Nic>(file_name, name, value, kNicFields, &network.nic, &network.nic);
    } else if (const Field<Network>* field = find_field(kNetworkFields, name)) {
      status = read_number(file_name, name, value, *field, &network);
    } else {
      status = at(file_name, value.source(),
                  fmt::format("unknown key '{}'; known are intra_node, inter_node, nic, "
                              "copy_ns_per_byte, reduce_ns_per_byte",
                              name));
    }
    WEIR_RETURN_IF_ERROR(status);
  }
  return network;
}

Result<Network> load_network(const std::string& path, const Network& defaults) {
  const Result<std::string> text = read_any_file(path, kNetworkFileBytesMax);
  if (!text.ok()) return text.status().with_context("network file");
  return parse_network(text.value(), path, defaults);
}

}  // namespace weir::sim
