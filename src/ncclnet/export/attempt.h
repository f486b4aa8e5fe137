// SPDX-License-Identifier: Apache-2.0
// Attempt: a connection in the making. NCCL's connect and accept must not wait, and a transport's connect does: so
// a thread of its own makes the connection, and NCCL's thread asks now and then. Over the address in the handle
// the two ends first form a control mesh of two ranks (net/control_mesh.h), which proves to each that the other
// holds the handle (and the job's secret), and carries the addresses of the transport's instances as cards; then
// both connect these. The thread takes no signals, always ends by the deadline, soon after `cancel`, and needs
// nobody to wait for it: the library that it runs in is never unloaded. Thread-safe.
//
//   card: offset  bytes  field
//              0      4  magic "WNCC"
//              4      8  name of the transport, padded with zeros
//             12      n  address of the sender's instance
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "ncclnet/export/handle.h"
#include "ncclnet/export/link.h"
#include "net/control_mesh.h"

namespace weir::ncclnet {

class Attempt {
 public:
  struct Config {
    const weir_transport_functions_t* functions = nullptr;
    std::string meet_over;  // settings WEIR_IFNAME, as a device has them
    std::string move_over;
    net::Mac secret{};  // connection_secret
    int64_t timeout_ms = 0;
  };

  // The end that listens, at once. Null with the reason.
  static std::shared_ptr<Attempt> listen(const Config& config, net::mesh::Address* address,
                                         std::string* reason);
  // The end that connects to what the handle tells, at once.
  static std::shared_ptr<Attempt> connect(const Config& config, const net::mesh::Address& peer,
                                          std::string* reason);
  ~Attempt();

  // Starts the thread; once. False: there can be none.
  static bool start(const std::shared_ptr<Attempt>& attempt);
  bool started() const { return started_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // Who made it does not want it any more.
  void cancel() { cancelled_ = true; }

  // Once finished:
  Result result() const { return result_; }
  const std::string& text() const { return text_; }
  std::unique_ptr<Link> take_link() { return std::move(link_); }

 private:
  Attempt(const Config& config, bool listens) : config_(config), listens_(listens) {}
  bool open_mesh(std::string* reason);
  void run();
  weir_result_t make();
  weir_result_t fail(weir_result_t result, std::string text);

  Config config_;
  const bool listens_;
  net::mesh::Address addresses_[2];
  std::unique_ptr<net::ControlMesh> mesh_;
  std::unique_ptr<Link> link_;
  bool started_ = false;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  Result result_ = kSuccess;
  std::string text_;
};

}  // namespace weir::ncclnet
