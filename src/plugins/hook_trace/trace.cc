// SPDX-License-Identifier: Apache-2.0
// hook_trace: keeps the latest operations in a ring and writes them, when the instance closes, as
// Chrome trace events (chrome://tracing, Perfetto). One track per lane and direction; an operation
// lasts from its posting to the test that found it complete.
//
// WEIR_TRACE_FILE is the file's name, in which %r stands for the rank, %p for the process, %c for
// the communicator and %% for %. Without it: weir-trace-%c-%r.json.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "output/chrome_trace.h"
#include "plugins/hook/hook.h"
#include "plugins/hook/in_flight.h"

namespace weir::plugins::hook_trace {
namespace {

constexpr size_t kEventCount = 65536;
constexpr char kDefaultPattern[] = "weir-trace-%c-%r.json";

struct Event {
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t bytes;
  uint32_t peer;
  uint16_t lane;
  bool sending;
  bool failed;
  const char* name;
};

class Trace final : public hook::Hook {
 public:
  static constexpr char kName[] = "trace";
  static constexpr bool kPassesDevices = true;
  using Hook::Hook;

  weir_result_t start(const weir_transport_config_t& config) override {
    const char* pattern = setting("WEIR_TRACE_FILE");
    if (pattern == nullptr || pattern[0] == 0) pattern = kDefaultPattern;
    char comm[24];
    snprintf(comm, sizeof comm, "%016" PRIx64, config.comm_id);
    for (const char* c = pattern; *c != 0; ++c) {
      if (*c != '%') {
        path_ += *c;
        continue;
      }
      switch (*++c) {
        case 'r':
          path_ += std::to_string(rank_);
          break;
        case 'p':
          path_ += std::to_string(getpid());
          break;
        case 'c':
          path_ += comm;
          break;
        case '%':
          path_ += '%';
          break;
        default:
          return fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "WEIR_TRACE_FILE=%s: after %% there must be r, p, c or %%", pattern);
      }
    }
    events_.resize(kEventCount);
    start_ns_ = hook::monotonic_ns();
    return WEIR_OK;
  }

  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    const Event event = begin(true, peer, lane, bytes);
    return posted(event, op, inner_->send(instance_, peer, lane, data, bytes, op));
  }

  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    const Event event = begin(false, peer, lane, bytes);
    return posted(event, op, inner_->recv(instance_, peer, lane, data, bytes, op));
  }

  weir_result_t device_message(const hook::DeviceMessage& m, weir_transport_op_t* op) override {
    Event event = begin(m.sending, m.peer, m.lane, m.bytes);
    event.name = m.sending ? "device_send" : "device_recv";
    return posted(event, op, device_message_inner(m, op));
  }

  // Recorded under the lane after the last one, since it has no lane; its peer is the owner of the
  // memory.
  weir_result_t access(const hook::RemoteRequest& request, weir_transport_op_t* op) override {
    const uint32_t peer = peer_of(request.bytes != 0 ? request.remote : request.signal);
    Event event = begin(!request.is_get, peer, inner_->caps.lane_count, request.bytes);
    event.name = request.name();
    return posted(event, op, access_inner(request, op));
  }

  weir_result_t remote_open(uint32_t peer, const unsigned char* key, size_t key_bytes,
                            weir_transport_remote_t** remote) override {
    const weir_result_t result = Hook::remote_open(peer, key, key_bytes, remote);
    if (result == WEIR_OK) remotes_[*remote] = peer;
    return result;
  }

  void remote_close(weir_transport_remote_t* remote) override {
    remotes_.erase(remote);
    Hook::remote_close(remote);
  }

  weir_result_t test(weir_transport_op_t* op) override {
    const weir_result_t result = inner_->test(instance_, op);
    if (result == WEIR_IN_PROGRESS) return result;
    if (const Event* event = in_flight_.find(op)) {
      end(*event, result);
      in_flight_.remove(op);
    }
    return result;
  }

  void close() override {
    Hook::close();
    if (owner_ == getpid()) write();  // else a forked child: the file is its parent's
  }

 private:
  static Event begin(bool sending, uint32_t peer, uint32_t lane, uint64_t bytes) {
    return {hook::monotonic_ns(),        0,       bytes, peer,
            static_cast<uint16_t>(lane), sending, false, sending ? "send" : "recv"};
  }

  uint32_t peer_of(const weir_transport_remote_t* remote) const {
    const auto found = remotes_.find(remote);
    return found != remotes_.end() ? found->second : rank_;
  }

  weir_result_t posted(const Event& event, weir_transport_op_t* op, weir_result_t result) {
    if (result != WEIR_IN_PROGRESS) {
      end(event, result);
    } else if (Event* kept = in_flight_.add(op)) {
      *kept = event;
    } else {
      ++lost_;
    }
    return result;
  }

  void end(Event event, weir_result_t result) {
    event.end_ns = hook::monotonic_ns();
    event.failed = result != WEIR_OK;
    events_[event_count_++ % kEventCount] = event;
  }

  void write() {
    const int fd =
        ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    FILE* file = fd < 0 ? nullptr : fdopen(fd, "w");
    if (file == nullptr) {
      const int error_number = errno;
      if (fd >= 0) ::close(fd);
      warn("WEIR_TRACE_FILE: cannot write %s: %s", path_.c_str(), strerror(error_number));
      return;
    }
    const std::string text = chrome_trace();
    const bool broken = fwrite(text.data(), 1, text.size(), file) != text.size();
    if (fclose(file) != 0 || broken) warn("WEIR_TRACE_FILE: %s is incomplete", path_.c_str());
  }

  std::string chrome_trace() const {
    const uint64_t first = event_count_ > kEventCount ? event_count_ - kEventCount : 0;
    output::ChromeTrace trace;
    trace.about("transport", std::string_view(inner_->name));
    trace.about("ranks", uint64_t{rank_count_});
    trace.about("operations", event_count_);
    trace.about("overwritten", first);
    trace.about("untracked", lost_);
    trace.name_process(rank_, "rank " + std::to_string(rank_));
    for (uint64_t i = first; i < event_count_; ++i) {
      const Event& e = events_[i % kEventCount];
      const output::TraceArgument arguments[] = {{"peer", uint64_t{e.peer}},
                                                 {"lane", uint64_t{e.lane}},
                                                 {"bytes", e.bytes},
                                                 {"failed", e.failed}};
      trace.span({rank_, e.lane * 2u + (e.sending ? 0u : 1u)}, e.name, e.name,
                 static_cast<int64_t>(e.start_ns - start_ns_), e.end_ns - e.start_ns, arguments);
    }
    return trace.finish();
  }

  const pid_t owner_ = getpid();
  std::string path_;
  std::vector<Event> events_;
  uint64_t event_count_ = 0;
  uint64_t lost_ = 0;
  uint64_t start_ns_ = 0;
  hook::InFlight<Event> in_flight_;
  std::map<const weir_transport_remote_t*, uint32_t> remotes_;  // their ranks
};

}  // namespace

const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
  return hook::make_table<Trace>(inner);
}

}  // namespace weir::plugins::hook_trace
