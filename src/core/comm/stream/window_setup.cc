// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/window_setup.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weir::comm {

Status make_window(StreamMemory& memory, control::Network* network, void* buffer, uint64_t bytes,
                   bool wanted, const GatherFromRanks& gather,
                   std::shared_ptr<const DeviceWindow>* made, std::string* reason) {
  DeviceWindow::Config config;
  config.rank = memory.rank();
  config.rank_count = memory.rank_count();
  config.context = memory.context();
  config.network = network;
  config.number = memory.next_window();
  auto window = std::make_shared<DeviceWindow>(memory.driver(), config, buffer, bytes, wanted);
  const DeviceWindow::Entry& mine = window->begin();
  std::vector<DeviceWindow::Entry> all(memory.rank_count());
  WEIR_RETURN_IF_ERROR(gather(&mine, all.data(), sizeof mine));
  const uint32_t can = window->connect(all) ? 1 : 0;
  std::vector<uint32_t> votes(all.size());
  WEIR_RETURN_IF_ERROR(gather(&can, votes.data(), sizeof can));
  window->connected();
  *reason = window->reason();
  if (std::any_of(votes.begin(), votes.end(), [](uint32_t vote) { return vote != 1; })) return {};
  *made = window;
  memory.add_window(std::move(window));
  return {};
}

void end_window(StreamMemory& memory, const DeviceWindow* window) {
  // The last owner ends the mappings, which may wait for the device.
  const std::shared_ptr<const DeviceWindow> taken = memory.take_window(window);
}

}  // namespace weir::comm
