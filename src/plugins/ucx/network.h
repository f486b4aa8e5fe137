// SPDX-License-Identifier: Apache-2.0
// Network: a UCX context with one worker, as UCX_* variables ask for it. A request of its worker begins
// with room for one pointer, null until somebody writes it. Making and ending one takes a
// lock of the process, because UCX reads its settings and loads its parts then; all else belongs to
// one thread at a time.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ucx/quiet.h"

namespace weir::plugins::ucx {

class Network {
 public:
  Network() = default;
  // Ends all endpoints, too.
  ~Network() { close(); }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // "" or what does not work.
  std::string open(uint32_t rank_count);
  void close();
  // In a forked child, where UCX does not work: forgets all without touching it.
  void abandon();

  ucp_worker_h worker() const { return worker_; }
  ucp_context_h context() const { return context_; }
  // How others reach the worker; of any length.
  std::string read_address(std::vector<unsigned char>* address) const;
  // UCX has a transport over memory that processes of one host share.
  bool shares_memory() const { return shares_memory_; }
  Heard& heard() { return heard_; }

 private:
  std::string open_with(const char* transports, uint32_t rank_count);
  void end();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  bool shares_memory_ = false;
  mutable Heard heard_;
};

// "1.13.1"
std::string library_version();
uint32_t library_version_number();
std::string version_text(uint32_t number);

}  // namespace weir::plugins::ucx
