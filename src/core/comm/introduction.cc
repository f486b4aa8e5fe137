// SPDX-License-Identifier: Apache-2.0
#include "core/comm/introduction.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "net/interfaces.h"
#include "weir/plugin.h"

namespace weir::comm {

namespace {

std::vector<unsigned char> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string Introduction::pack() const {
  const nlohmann::json json = {{"machine", machine},       {"host", bytes_of(host)},
                               {"place", bytes_of(place)}, {"cpus", cpus},
                               {"settings", settings},     {"address", bytes_of(address)}};
  const auto bytes = nlohmann::json::to_cbor(json);
  return std::string(bytes.begin(), bytes.end());
}

Result<Introduction> Introduction::unpack(const std::string& blob, Rank from) {
  Introduction it;
  const auto json = nlohmann::json::from_cbor(blob, true, false);
  try {
    json.at("machine").get_to(it.machine);
    json.at("cpus").get_to(it.cpus);
    json.at("settings").get_to(it.settings);
    const auto take = [&json](const char* name, std::string* text) {
      const auto bytes = json.at(name).get<std::vector<unsigned char>>();
      text->assign(bytes.begin(), bytes.end());
    };
    take("host", &it.host);
    take("place", &it.place);
    take("address", &it.address);
  } catch (const nlohmann::json::exception& e) {
    return Status(
        Code::kRefused,
        fmt::format("rank {} introduced itself in a form that cannot be read ({}); do all "
                    "ranks run the same version of Weir?",
                    from, e.what()));
  }
  if (it.address.size() > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
    return Status(Code::kRefused, fmt::format("rank {} gave an address that is too long", from));
  }
  return it;
}

Introduction introduce_this_process() {
  Introduction it;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, it.machine);
  const net::HostIdentity host =
      net::declared_host(std::getenv("WEIR_HOST_ID"), std::getenv("NCCL_HOSTID"));
  it.host.assign(reinterpret_cast<const char*>(host.bytes.data()), host.bytes.size());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) it.cpus.push_back(i);
    }
  }
  return it;
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
  // What the ranks of the fullest host would have at the poorest machine's share.
  size_t cores = ~size_t{0};
  for (const auto& [name, machine] : machines) {
    cores = std::min(cores, machine.cpus.size() * fullest / machine.ranks);
  }
  return static_cast<uint32_t>(std::max<size_t>(cores, 1));
}

bool shares_cores(const std::vector<Introduction>& all, Rank self) {
  const std::set<int> mine(all[self].cpus.begin(), all[self].cpus.end());
  if (mine.empty()) return false;
  size_t confined = 0;
  for (const Introduction& other : all) {
    if (other.machine != all[self].machine) continue;
    confined += std::all_of(other.cpus.begin(), other.cpus.end(),
                            [&](int cpu) { return mine.count(cpu) != 0; });
  }
  return confined > mine.size();
}

}  // namespace weir::comm
