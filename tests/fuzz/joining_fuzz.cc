// SPDX-License-Identifier: Apache-2.0
// What a rank is told before it has a communicator: how the others introduce themselves, what a
// launcher puts into the environment, which interfaces a user allows. The first byte says which; an
// environment's variables are divided by zero bytes.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/comm/start/introduction.h"
#include "core/comm/start/launch.h"
#include "net/interfaces.h"
#include "weir/plugin.h"

using namespace weir;
using namespace weir::comm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read_introduction(const std::string& blob) {
  const Result<Introduction> read = Introduction::unpack(blob, 3);
  if (!read.ok()) return require(read.status().text().find("rank 3") != std::string::npos);
  require(read.value().address.size() <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);
  CardsSeen cards;
  require(CardsSeen::unpack(read.value().cards.pack(), &cards));
  const auto choice = choose_fabric(
      {cards, cards}, [](const std::string&) { return Status(); },
      [&](const std::string& own) -> Result<std::vector<std::string>> {
        return std::vector<std::string>{own, read.value().settings};
      });
  require(choice.ok() ? !choice.value().reason.empty()
                      : choice.status().text().find("rank 1") != std::string::npos);
  const std::vector<Introduction> all = {read.value(), Introduction(), read.value()};
  const std::vector<uint32_t> hosts = host_of_rank(all);
  require(hosts.empty() || (hosts.size() == 3 && hosts[0] == hosts[2]));
  require(cores_per_host(all) >= 1);
  require(shared_cores(all).size() == all.size());
  (void)hosts_of(all);
}

void read_environment(const std::string& text) {
  std::vector<std::string> variables;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    variables.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  const Result<Launch> launch = launch_from_environment(environment.data());
  if (!launch.ok()) return require(!launch.status().text().empty());
  require(launch.value().rank < launch.value().rank_count);
  require(!launch.value().local_known || launch.value().local_rank < launch.value().local_count);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 3) {
    case 0:
      read_introduction(text);
      break;
    case 1:
      read_environment(text);
      break;
    default: {
      net::InterfaceFilter filter;
      std::string reason;
      require(net::filter_from(text.c_str(), nullptr, &filter, &reason) || !reason.empty());
    }
  }
  return 0;
}
