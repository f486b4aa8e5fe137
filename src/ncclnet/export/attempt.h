// SPDX-License-Identifier: Apache-2.0
// Attempt: a connection being established. NCCL's connect and accept must not wait, but a
// transport's connect does: so a separate thread establishes the connection, and NCCL's thread
// polls it. The two ends are the two ranks of a control network (core/control/network.h), which
// proves to each that the other holds the handle (and the job's secret). The handle holds the
// listener's address in it; the listener learns the other end's from a first message, which each
// end sends, and which also has the address of the sender's transport instance. Then both connect
// these. The thread takes no signals, always ends by the deadline and soon after `cancel`, and
// need not be joined: its library is never unloaded. Thread-safe.
//
//   message: offset  bytes  field (integers little-endian)
//                 0      4  magic "WNCC"
//                 4      8  name of the transport, padded with zeros
//                12      2  bytes of the sender's address in the control network
//                14      n  that address; then that of the sender's instance
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/control/network.h"
#include "ncclnet/export/handle.h"
#include "ncclnet/export/link.h"

namespace weir::ncclnet {

class Attempt {
 public:
  struct Config {
    const weir_transport_functions_t* functions = nullptr;
    std::string meet_over;  // values of WEIR_IFNAME, from the device: for the control network,
    std::string move_over;  // and for the transport
    net::Mac secret{};      // connection_secret
    int64_t timeout_ms = 0;
    net::TlsMode tls = net::TlsMode::kOff;  // of the control network
  };

  // Makes the end that listens, without waiting. Null with the reason.
  static std::shared_ptr<Attempt> listen(const Config& config, control::NetworkAddress* address,
                                         std::string* reason);
  // Makes the end that connects to the address in the handle, without waiting.
  static std::shared_ptr<Attempt> connect(const Config& config, const control::NetworkAddress& peer,
                                          std::string* reason);
  ~Attempt();

  // Starts the thread; called once. False: no thread could be created.
  static bool start(const std::shared_ptr<Attempt>& attempt);
  bool started() const { return started_; }
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // The attempt is no longer wanted.
  void cancel() { cancelled_ = true; }

  // Once finished:
  Result result() const { return result_; }
  const std::string& text() const { return text_; }
  std::unique_ptr<Link> take_link() { return std::move(link_); }

 private:
  Attempt(const Config& config, bool listens) : config_(config), listens_(listens) {}
  bool open_network(std::string* reason);
  void run();
  weir_result_t make();
  Status still_wanted() const;
  Status receive(std::string* message, uint64_t deadline_ns) const;
  weir_result_t fail(weir_result_t result, std::string text);

  Config config_;
  const bool listens_;
  control::NetworkAddress addresses_[2];
  std::unique_ptr<Link> link_;
  bool started_ = false;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> finished_{false};
  Result result_ = kSuccess;
  std::string text_;
};

}  // namespace weir::ncclnet
