// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/device_links.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/start/process_topology.h"
#include "core/graph/machine_graph.h"
#include "core/graph/search_record.h"
#include "net/little_endian.h"

namespace weir::comm {
namespace {

// "0000:3b:00.0 1", padded with zeros.
using ToldDevice = std::array<char, 64>;

constexpr size_t kFiguresBytes = 16;

std::string text_of(const ToldDevice& told) {
  return std::string(told.data(), strnlen(told.data(), told.size()));
}

// No value: the topology does not say it.
Result<graph::DeviceWays> ways_of(const topo::Topology& topology,
                                  const std::vector<ToldDevice>& devices) {
  std::vector<graph::RankPlace> places;
  for (const ToldDevice& told : devices) {
    graph::RankPlace place;
    place.device = device_of(text_of(told), topology);
    if (place.device == topo::kNoNode) {
      return invalid_argument(
          fmt::format("the topology has no device {} ({})", places.size(), text_of(told)));
    }
    places.push_back(std::move(place));
  }
  const uint32_t kind = 0;
  auto graph = graph::machine_graph({{&topology, 1}, {&kind, 1}, places});
  if (!graph.ok()) return graph.status();
  return graph::device_ways(graph.value());
}

std::string pack(const graph::DeviceWays& ways) {
  std::array<unsigned char, kFiguresBytes> figures;
  net::put(figures.data(), std::bit_cast<uint64_t>(ways.straight_ns_per_byte));
  net::put(figures.data() + 8, std::bit_cast<uint64_t>(ways.rings_ns_per_byte));
  std::string text(reinterpret_cast<const char*>(figures.data()), figures.size());
  if (!ways.rings_are_faster()) return text;
  const auto rings = graph::pack(ways.rings);
  return rings.ok() ? text + rings.value() : "";
}

Result<graph::DeviceWays> unpack(std::string_view text, Rank rank_count) {
  const Status broken(Code::kRefused,
                      "rank 0 has told links between devices that cannot be read; do all ranks run "
                      "the same version of Weir?");
  if (text.size() < kFiguresBytes) return broken;
  const auto figure = [&](size_t at) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data() + at);
    return std::bit_cast<double>(net::get<uint64_t>(bytes));
  };
  graph::DeviceWays ways;
  ways.straight_ns_per_byte = figure(0);
  ways.rings_ns_per_byte = figure(8);
  if (!(ways.straight_ns_per_byte >= 0 && ways.rings_ns_per_byte >= 0)) return broken;
  const std::string_view packed = text.substr(kFiguresBytes);
  if (packed.empty() != !ways.rings_are_faster()) return broken;
  if (packed.empty()) return ways;
  auto rings = graph::unpack_rings(packed);
  if (!rings.ok() || rings.value().rank_count != rank_count) return broken;
  ways.rings = rings.take();
  return ways;
}

}  // namespace

Result<DeviceLinks> agree_on_device_links(const Settings& settings, Rank rank, Rank rank_count,
                                          const std::string& device,
                                          const GatherFromRanks& gather) {
  DeviceLinks links;
  ToldDevice mine{};
  if (device.size() < mine.size()) std::memcpy(mine.data(), device.data(), device.size());
  std::vector<ToldDevice> devices(rank_count);
  WEIR_RETURN_IF_ERROR(gather(mine.data(), devices.data(), sizeof mine));
  for (const ToldDevice& told : devices) {
    if (told[0] == 0) return links;
  }
  std::string told;
  if (rank == 0) {
    with_topology(settings, [&](const topo::Topology& topology) {
      const auto ways = ways_of(topology, devices);
      links.reason = ways.ok() ? "known" + graph::describe(ways.value())
                               : "not known (" + ways.status().text() + ")";
      if (ways.ok()) told = pack(ways.value());
    });
  }
  const uint64_t size = told.size();
  std::vector<uint64_t> sizes(rank_count);
  WEIR_RETURN_IF_ERROR(gather(&size, sizes.data(), sizeof size));
  if (sizes[0] == 0) return links;
  if (sizes[0] > kToldBytesMax) {
    return Status(Code::kRefused,
                  fmt::format("rank 0 tells {} bytes of links between devices", sizes[0]));
  }
  told.resize(sizes[0]);
  std::string all(sizes[0] * rank_count, '\0');
  WEIR_RETURN_IF_ERROR(gather(told.data(), all.data(), told.size()));
  auto ways = unpack(std::string_view(all).substr(0, sizes[0]), rank_count);
  if (!ways.ok()) return ways.status();
  links.ways = std::make_shared<const graph::DeviceWays>(ways.take());
  return links;
}

}  // namespace weir::comm
