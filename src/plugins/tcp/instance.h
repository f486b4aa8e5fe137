// SPDX-License-Identifier: Apache-2.0
// Instance: what this transport holds for one communicator, and what its functions have in common.
// One thread at a time per object.
#pragma once

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/tcp/batch.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/clock.h"
#include "plugins/tcp/control.h"
#include "plugins/tcp/joiner.h"
#include "plugins/tcp/lazy.h"
#include "plugins/tcp/meeting.h"
#include "plugins/tcp/rejoin.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {

// Connections that are asked each by itself; of more, one poll asks which are ready.
inline constexpr size_t kDirectMax = 8;
inline constexpr uint32_t kRankCountMax = 512;  // every rank holds a connection to each other

struct Instance {
  Report report;
  Identity identity;
  pid_t owner = getpid();
  std::unique_ptr<const net::TlsContext> tls;  // before all connections; null: they are plain
  std::unique_ptr<Meeting> meeting;
  bool joined = false;
  IoWish io_wish = IoWish::kAuto;
  std::unique_ptr<Batch> batch;  // null: each connection is asked by itself
  ZeroCopy::Wish zero_copy = ZeroCopy::Wish::kAuto;
  std::vector<Channel> channels;                 // [peer * kLaneCount + lane], of one rail
  std::vector<Control> controls;                 // [peer], of one rail
  std::vector<std::unique_ptr<Bundle>> bundles;  // [peer]; null: it has one rail
  std::vector<std::string> ways;                 // [peer]; as it was chosen, for people
  std::unique_ptr<Joiner> joiner;                // null: all connections are there, for good
  std::unique_ptr<Rejoin> rejoin;                // null: all have one rail
  std::unique_ptr<Lazy> lazy;                    // null: all have all connections
  unsigned char notice[kNoticeBytesMax] = {};    // that this rank shows
  size_t notice_bytes = 0;
  uint32_t notice_version = 0;
  bool notice_waits = false;  // it could not leave for every peer yet
  Channel* active = nullptr;  // channels with queued operations
  size_t active_count = 0;
  std::vector<uint32_t> active_bundles;  // peers whose bundles have something to do
  uint32_t progress_calls = 0;
  uint64_t looked_ns = 0;       // after all bundles
  std::vector<pollfd> entries;  // room for two per channel

  ~Instance();

  // Of every connection that carries notices.
  template <typename Function>
  void for_each_control(Function function) {
    for (Control& control : controls) function(control);
    for (const std::unique_ptr<Bundle>& bundle : bundles) {
      for (uint32_t rail = 0; bundle != nullptr && rail < bundle->rail_count(); ++rail) {
        function(bundle->control(rail));
      }
    }
  }
};

inline Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

// Reports a failed direction of a lane, and names the parties.
weir_result_t tell(Instance* self, uint32_t peer, uint32_t lane, bool is_send, Failure* failure);

// Of the table of functions.
weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes);
weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance);
weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes);
weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns);
weir_result_t peer_leave(weir_transport_t* instance, uint32_t peer);

}  // namespace weir::plugins::tcp
