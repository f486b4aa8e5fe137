// SPDX-License-Identifier: Apache-2.0
// TwoHosts: two network namespaces joined by a pair of veth, for ranks that are processes. Nobody
// but the descriptors and two sleeping processes, which end with this one, holds them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace weir::conformance {

class TwoHosts {
 public:
  TwoHosts() = default;
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // "" or why there are none.
  std::string make();
  bool are_there() const { return fds_[0] >= 0; }
  // In a forked child: from now on it lives on host `rank` modulo 2. False: it could not.
  bool enter(uint32_t rank) const;

 private:
  pid_t keepers_[2] = {};
  int fds_[2] = {-1, -1};
};

// Of this program; made by main where WEIR_CONFORMANCE_HOSTS=2 asks for it.
TwoHosts& two_hosts();

}  // namespace weir::conformance
