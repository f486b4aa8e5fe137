// SPDX-License-Identifier: Apache-2.0
// Outside: what the library asks the world around it, in a simulated run. Its clock, its sleeps,
// its settings, its log, its tuning rules, the machine that it runs on and the way in which ranks
// first meet are those of the simulation: outside.cc is linked in their place (CMakeLists.txt).
// Everything else is the library as it is. One world at a time; one thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/cost/rules.h"
#include "simnet/world.h"

namespace weir::simnet {

struct Room;

struct Outside {
  explicit Outside(World& world);
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  World& world;
  Result<Settings> settings;           // every one at its default, until somebody sets it
  cost::Rules rules;                   // of WEIR_TUNING_FILE
  std::vector<uint32_t> host_of_rank;  // of the world's ranks
  uint32_t cores_per_host = 4;
  std::map<std::string, std::unique_ptr<Room>> rooms;  // where ranks meet, by secret
};

}  // namespace weir::simnet
