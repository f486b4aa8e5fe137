// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/introduction.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/comm/start/bootstrap.h"
#include "core/comm/start/process_topology.h"
#include "net/interfaces.h"
#include "net/little_endian.h"
#include "weir/plugin.h"

namespace weir::comm {

namespace {

constexpr char kMagic[4] = {'W', 'I', 'N', 'T'};
constexpr uint16_t kVersion = 3;
constexpr size_t kDeviceBytesMax = 64;
constexpr uint32_t kCpuEnd = 1u << 16;  // no machine has so many

void append_number(uint32_t value, std::string* bytes) {
  unsigned char number[4];
  net::put(number, value);
  bytes->append(reinterpret_cast<const char*>(number), sizeof number);
}

void append(std::string_view text, std::string* bytes) {
  append_number(static_cast<uint32_t>(text.size()), bytes);
  *bytes += text;
}

// Takes what `append` has put in front of `bytes`. False: it is not whole.
bool take(std::string_view* bytes, std::string* text) {
  if (bytes->size() < 4) return false;
  const size_t size = net::get<uint32_t>(reinterpret_cast<const unsigned char*>(bytes->data()));
  if (size > bytes->size() - 4) return false;
  text->assign(bytes->substr(4, size));
  bytes->remove_prefix(4 + size);
  return true;
}

}  // namespace

std::string Introduction::pack() const {
  std::string bytes(kMagic, sizeof kMagic);
  bytes += static_cast<char>(kVersion);
  bytes += static_cast<char>(kVersion >> 8);
  // Which cores, as ranges: first and last.
  std::string ranges;
  for (size_t i = 0; i < cpus.size(); ++i) {
    const size_t begin = i;
    while (i + 1 < cpus.size() && cpus[i + 1] == cpus[i] + 1) ++i;
    for (const int cpu : {cpus[begin], cpus[i]}) {
      append_number(static_cast<uint32_t>(cpu), &ranges);
    }
  }
  std::string packed_place;
  for (const uint32_t number : {cpu_place.cache, cpu_place.numa, cpu_place.package}) {
    append_number(number, &packed_place);
  }
  const std::string packed_cards = cards.pack();
  for (const std::string_view text :
       std::initializer_list<std::string_view>{machine, host, place, ranges, packed_place,
                                               packed_cards, device, settings, network, address}) {
    append(text, &bytes);
  }
  return bytes;
}

Result<Introduction> Introduction::unpack(const std::string& blob, Rank from) {
  Introduction it;
  std::string ranges;
  std::string place;
  std::string cards;
  std::string_view bytes = blob;
  const std::string_view magic(kMagic, sizeof kMagic);
  bool good = bytes.substr(0, magic.size()) == magic && bytes.size() >= magic.size() + 2 &&
              static_cast<unsigned char>(bytes[4]) == (kVersion & 0xff) &&
              static_cast<unsigned char>(bytes[5]) == kVersion >> 8;
  if (good) bytes.remove_prefix(magic.size() + 2);
  for (std::string* text : {&it.machine, &it.host, &it.place, &ranges, &place, &cards, &it.device,
                            &it.settings, &it.network, &it.address}) {
    good = good && take(&bytes, text);
  }
  good = good && bytes.empty() && ranges.size() % 8 == 0 && place.size() == 12 &&
         CardsSeen::unpack(cards, &it.cards);
  for (size_t i = 0; good && i < ranges.size(); i += 8) {
    const auto* const at = reinterpret_cast<const unsigned char*>(ranges.data()) + i;
    const uint32_t first = net::get<uint32_t>(at);
    const uint32_t last = net::get<uint32_t>(at + 4);
    good = first <= last && last < kCpuEnd &&
           (it.cpus.empty() || static_cast<int>(first) > it.cpus.back());
    for (uint32_t cpu = first; good && cpu <= last; ++cpu) {
      it.cpus.push_back(static_cast<int>(cpu));
    }
  }
  if (good) {
    const auto* const at = reinterpret_cast<const unsigned char*>(place.data());
    it.cpu_place = {net::get<uint32_t>(at), net::get<uint32_t>(at + 4), net::get<uint32_t>(at + 8)};
  }
  if (!good) {
    return Status(Code::kRefused, fmt::format("the introduction of rank {} cannot be read; do all "
                                              "ranks run the same version of Weir?",
                                              from));
  }
  if (it.device.size() > kDeviceBytesMax) {
    return Status(Code::kRefused, fmt::format("rank {} sent a device of {} bytes; allowed are {}",
                                              from, it.device.size(), kDeviceBytesMax));
  }
  if (it.address.size() > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
    return Status(Code::kRefused,
                  fmt::format("rank {} sent a transport address that is too long", from));
  }
  return it;
}

Introduction introduce_this_process() {
  Introduction it;
  it.machine = net::boot_id();
  const net::HostIdentity host =
      net::declared_host(std::getenv("WEIR_HOST_ID"), std::getenv("NCCL_HOSTID"));
  it.host.assign(reinterpret_cast<const char*>(host.bytes.data()), host.bytes.size());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) it.cpus.push_back(i);
    }
    topo::CpuSet cpus;
    for (const int cpu : it.cpus) cpus.add(static_cast<uint32_t>(cpu));
    it.cpu_place = place_on_machine(cpus);
  }
  it.cards.cards = topo::look_for_cards("/sys");
  return it;
}

Status tell_all(Bootstrap& bootstrap, const Introduction& self, uint64_t deadline_ns,
                std::vector<Introduction>* all) {
  auto blobs = bootstrap.all_gather(self.pack(), deadline_ns);
  if (!blobs.ok()) return blobs.status();
  all->clear();
  for (Rank p = 0; p < blobs.value().size(); ++p) {
    auto other = Introduction::unpack(blobs.value()[p], p);
    if (!other.ok()) return other.status();
    all->push_back(other.take());
  }
  return Status();
}

std::vector<uint32_t> host_of_rank(const std::vector<Introduction>& all) {
  std::vector<uint32_t> hosts;
  std::map<std::string, uint32_t> known;
  for (const Introduction& it : all) {
    hosts.push_back(known.emplace(it.host, static_cast<uint32_t>(known.size())).first->second);
  }
  if (known.size() <= 1) hosts.clear();
  return hosts;
}

std::string hosts_of(const std::vector<Introduction>& all) {
  std::string hosts;
  std::set<std::string> known;
  for (const Introduction& it : all) {
    if (known.insert(it.host).second) hosts += std::to_string(it.host.size()) + " " + it.host;
  }
  return hosts;
}

uint32_t cores_per_host(const std::vector<Introduction>& all) {
  struct Machine {
    std::set<int> cpus;
    size_t ranks = 0;
  };
  std::map<std::string, Machine> machines;
  std::map<std::string, size_t> populations;
  size_t fullest = 0;
  for (const Introduction& it : all) {
    Machine& machine = machines[it.machine];
    machine.cpus.insert(it.cpus.begin(), it.cpus.end());
    ++machine.ranks;
    fullest = std::max(fullest, ++populations[it.host]);
  }
  // The number of cores that the ranks of the fullest host would have at the smallest share of a
  // machine.
  size_t cores = ~size_t{0};
  for (const auto& [name, machine] : machines) {
    cores = std::min(cores, machine.cpus.size() * fullest / machine.ranks);
  }
  return static_cast<uint32_t>(std::max<size_t>(cores, 1));
}

std::string describe_layout(const std::vector<Introduction>& all) {
  const std::vector<uint32_t> hosts = host_of_rank(all);
  std::string text = fmt::format("{} ranks on ", all.size());
  if (hosts.empty()) {
    text += "one host";
  } else {
    text += fmt::format("{} hosts (", *std::max_element(hosts.begin(), hosts.end()) + 1);
    // As runs of ranks: "0 x2, 1 x2".
    for (size_t i = 0; i < hosts.size();) {
      size_t end = i;
      while (end < hosts.size() && hosts[end] == hosts[i]) ++end;
      text += fmt::format("{}{} x{}", i == 0 ? "" : ", ", hosts[i], end - i);
      i = end;
    }
    text += ")";
  }
  return text + fmt::format(" with {} cores", cores_per_host(all));
}

std::vector<bool> shared_cores(const std::vector<Introduction>& all) {
  // Many ranks of a machine have the same cores.
  struct Group {
    size_t ranks = 0;
    bool shares = false;
  };
  std::map<std::pair<std::string_view, std::vector<int>>, Group> groups;
  for (const Introduction& it : all) ++groups[{it.machine, it.cpus}].ranks;
  // A rank that is confined to a set of cores has its first core in the set.
  std::map<std::pair<std::string_view, int>, std::vector<decltype(groups)::const_pointer>> by_first;
  for (const auto& group : groups) {
    const auto& [machine, cpus] = group.first;
    by_first[{machine, cpus.empty() ? -1 : cpus.front()}].push_back(&group);
  }
  for (auto& [mine, group] : groups) {
    const auto& [machine, cpus] = mine;
    const auto none = by_first.find({machine, -1});
    size_t confined = none == by_first.end() ? 0 : none->second.front()->second.ranks;
    for (const int cpu : cpus) {
      const auto others = by_first.find({machine, cpu});
      if (others == by_first.end()) continue;
      for (const auto* other : others->second) {
        const std::vector<int>& theirs = other->first.second;
        const bool inside = std::includes(cpus.begin(), cpus.end(), theirs.begin(), theirs.end());
        if (inside) confined += other->second.ranks;
      }
    }
    group.shares = !cpus.empty() && confined > cpus.size();
  }
  std::vector<bool> result;
  for (const Introduction& it : all) result.push_back(groups.at({it.machine, it.cpus}).shares);
  return result;
}

uint32_t ranks_per_core(const std::vector<Introduction>& all, Rank rank) {
  const Introduction& own = all[rank];
  const auto ranks = std::count_if(all.begin(), all.end(), [&](const Introduction& it) {
    return it.machine == own.machine && it.cpus == own.cpus;
  });
  return static_cast<uint32_t>(static_cast<size_t>(ranks) / std::max<size_t>(own.cpus.size(), 1));
}

}  // namespace weir::comm
