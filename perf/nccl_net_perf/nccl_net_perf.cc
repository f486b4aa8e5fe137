// SPDX-License-Identifier: Apache-2.0
// nccl_net_perf: two processes over any network plugin of NCCL, without a GPU and without NCCL:
// each loads the plugin as NCCL would, both connect in both directions, and messages in host memory
// are timed.
//
//   nccl_net_perf <plugin> [-b bytes] [-e bytes] [-f factor] [-n count] [-w window] [-c 0|1]
//                 [--abi version]
//
// For each size: one-way microseconds of a ping-pong, millions of bytes per second with a window of
// messages under way in one direction, and, in a separate run, the number of wrong bytes. The exit
// status is not 0 when there was any, or when something failed.
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "ncclnet/loaded_plugin.h"
#include "output/run_tool.h"

namespace weir::perf {
namespace {

using ncclnet::kHandleBytes;
using ncclnet::LoadedPlugin;
using ncclnet::Result;

struct Options {
  std::string plugin;
  uint64_t bytes_min = 8;
  uint64_t bytes_max = 4u << 20;
  uint64_t factor = 4;
  int count = 200;
  int window = 16;
  bool check = true;
  int abi = 0;
  int device = 0;
  int timeout_s = 30;
};

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

[[noreturn]] void give_up(const std::string& what) {
  fprintf(stderr, "nccl_net_perf: %s\n", what.c_str());
  exit(1);
}

unsigned char byte_at(uint32_t from, uint64_t message, uint64_t index) {
  return static_cast<unsigned char>((index * 131 + message * 31 + from * 7 + 1) >> (index % 3));
}

// One of the two processes, connected to the other in both directions.
class Side {
 public:
  Side(const Options& options, uint32_t rank, int socket) : options_(options), rank_(rank) {
    std::string reason;
    plugin_ = ncclnet::open_plugin(options.plugin, options.abi, &reason);
    if (plugin_ == nullptr) give_up(options.plugin + ": " + reason);
    require(plugin_->init(1, &context_), "init");
    int count = 0;
    require(plugin_->devices(&count), "devices");
    if (options.device < 0 || options.device >= count) {
      give_up("there is no device " + std::to_string(options.device) + " of " +
              std::to_string(count));
    }
    require(plugin_->properties(options.device, &device_), "getProperties");
    if ((device_.pointer_kinds & ncclnet::kPointerHost) == 0) give_up("it takes no host memory");
    connect(socket);
  }
  ~Side() {
    (void)plugin_->close_send(send_comm_);
    (void)plugin_->close_recv(recv_comm_);
    (void)plugin_->finalize(context_);
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  std::string description() const {
    return plugin_->description() + "; device " + device_.name + ", " +
           std::to_string(device_.speed_mbits) + " Mbit/s";
  }

  // Both have a registered buffer per direction.
  void use_buffers(unsigned char* out, unsigned char* in, uint64_t bytes) {
    out_ = out;
    in_ = in;
    require(plugin_->register_memory(send_comm_, out, bytes, &out_memory_), "regMr");
    require(plugin_->register_memory(recv_comm_, in, bytes, &in_memory_), "regMr");
  }
  void drop_buffers() {
    require(plugin_->deregister_memory(send_comm_, out_memory_), "deregMr");
    require(plugin_->deregister_memory(recv_comm_, in_memory_), "deregMr");
  }

  // Nanoseconds of `count` round trips.
  uint64_t bounce(uint64_t bytes, int count) {
    const uint64_t start = now_ns();
    for (int i = 0; i < count; ++i) {
      void* received = begin_receive(bytes);
      if (rank_ == 0) finish(begin_send(bytes), bytes);
      finish(received, bytes);
      if (rank_ != 0) finish(begin_send(bytes), bytes);
    }
    return now_ns() - start;
  }

  // Nanoseconds of `count` messages from rank 0 to rank 1, and the acknowledgement that they have
  // arrived.
  uint64_t stream(uint64_t bytes, int count) {
    const uint64_t start = now_ns();
    std::vector<void*> requests;
    int posted = 0;
    for (size_t next = 0; next < static_cast<size_t>(count);) {
      while (posted < count && requests.size() - next < static_cast<size_t>(options_.window)) {
        requests.push_back(rank_ == 0 ? begin_send(bytes) : begin_receive(bytes));
        ++posted;
      }
      finish(requests[next++], bytes);
    }
    if (rank_ == 0) {
      finish(begin_receive(1), 1);
    } else {
      finish(begin_send(1), 1);
    }
    return now_ns() - start;
  }

  // The number of bytes that differ from those sent, in messages of this size and of one byte less,
  // received with room for the larger.
  uint64_t wrong(uint64_t bytes) {
    uint64_t count = 0;
    for (uint64_t message = 0; message < 4; ++message) {
      const uint64_t sent = bytes - (message % 2 == 1 && bytes > 0 ? 1 : 0);
      for (uint64_t i = 0; i < sent; ++i) out_[i] = byte_at(rank_, message, i);
      std::fill(in_, in_ + bytes, static_cast<unsigned char>(0xa5));
      void* received = begin_receive(bytes);
      void* under_way = begin_send(sent);
      // Neither end's message moves unless it is tested.
      bool sent_all = false, received_all = false;
      until("test", [&] {
        sent_all = sent_all || ask(under_way, sent);
        received_all = received_all || ask(received, sent);
        return sent_all && received_all;
      });
      for (uint64_t i = 0; i < sent; ++i) count += in_[i] != byte_at(1 - rank_, message, i) ? 1 : 0;
      if (sent < bytes && in_[sent] != 0xa5) ++count;
    }
    return count;
  }

 private:
  void require(Result result, const char* what) const {
    if (result == ncclnet::kSuccess) return;
    const std::string warning = ncclnet::take_warning();
    give_up(std::string(what) + ": " + ncclnet::name_of(result) +
            (warning.empty() ? "" : " (" + warning + ")"));
  }

  // Calls `step` until it is true.
  template <typename Step>
  void until(const char* what, Step step) const {
    uint64_t end = 0;
    for (uint32_t turn = 0; !step(); ++turn) {
      if (turn % 1024 != 1023) continue;
      sched_yield();  // where there are more processes than cores
      if (end == 0) end = now_ns() + static_cast<uint64_t>(options_.timeout_s) * 1'000'000'000;
      if (now_ns() > end) {
        give_up(std::string(what) + ": not done within " + std::to_string(options_.timeout_s) +
                " s");
      }
    }
  }

  void connect(int socket) {
    unsigned char own[kHandleBytes] = {}, other[kHandleBytes] = {};
    void* listen_comm = nullptr;
    require(plugin_->listen(context_, options_.device, own, &listen_comm), "listen");
    if (write(socket, own, sizeof own) != static_cast<ssize_t>(sizeof own) ||
        recv(socket, other, sizeof other, MSG_WAITALL) != static_cast<ssize_t>(sizeof other)) {
      give_up("the other process has ended");
    }
    until("connect", [&] {
      if (send_comm_ == nullptr) {
        require(plugin_->connect(context_, options_.device, other, &send_comm_), "connect");
      }
      if (recv_comm_ == nullptr) require(plugin_->accept(listen_comm, &recv_comm_), "accept");
      if (send_comm_ == nullptr || recv_comm_ == nullptr) usleep(100);
      return send_comm_ != nullptr && recv_comm_ != nullptr;
    });
    require(plugin_->close_listen(listen_comm), "closeListen");
  }

  void* begin_send(uint64_t bytes) {
    void* request = nullptr;
    until("isend", [&] {
      require(plugin_->isend(send_comm_, out_, bytes, out_memory_, &request), "isend");
      return request != nullptr;
    });
    return request;
  }
  void* begin_receive(uint64_t bytes) {
    void* request = nullptr;
    until("irecv", [&] {
      require(plugin_->irecv(recv_comm_, in_, bytes, in_memory_, &request), "irecv");
      return request != nullptr;
    });
    return request;
  }
  // Whether the request is done.
  bool ask(void* request, uint64_t bytes) const {
    int done = 0, size = -1;
    require(plugin_->test(request, &done, &size), "test");
    if (done != 0 && size != static_cast<int>(bytes)) {
      give_up("a message has " + std::to_string(size) + " bytes, not " + std::to_string(bytes));
    }
    return done != 0;
  }
  void finish(void* request, uint64_t bytes) const {
    until("test", [&] { return ask(request, bytes); });
  }

  const Options& options_;
  const uint32_t rank_;
  LoadedPlugin* plugin_ = nullptr;
  void* context_ = nullptr;
  ncclnet::DeviceProperties device_;
  void* send_comm_ = nullptr;
  void* recv_comm_ = nullptr;
  unsigned char* out_ = nullptr;
  unsigned char* in_ = nullptr;
  void* out_memory_ = nullptr;
  void* in_memory_ = nullptr;
};

// Fewer of the long ones: at most some 256 MB.
int count_for(const Options& options, uint64_t bytes) {
  const uint64_t most = std::max<uint64_t>(4, 256'000'000 / std::max<uint64_t>(bytes, 1));
  return static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(options.count), most));
}

int play(const Options& options, uint32_t rank, int socket) {
  Side side(options, rank, socket);
  if (rank == 0) {
    printf("# %s\n# %12s %12s %12s %8s\n", side.description().c_str(), "bytes", "one way/us",
           "MB/s", "wrong");
  }
  std::vector<unsigned char> out(options.bytes_max + 1), in(options.bytes_max + 1);
  side.use_buffers(out.data(), in.data(), out.size());
  uint64_t wrong_total = 0;
  for (uint64_t bytes = options.bytes_min; bytes <= options.bytes_max;) {
    const int count = count_for(options, bytes);
    side.bounce(bytes, count / 10 + 2);
    const double bounced_us = static_cast<double>(side.bounce(bytes, count)) / 1e3;
    side.stream(bytes, count / 10 + 2);
    const double streamed_us = static_cast<double>(side.stream(bytes, count)) / 1e3;
    const uint64_t wrong = options.check ? side.wrong(bytes) : 0;
    wrong_total += wrong;
    if (rank == 0) {
      printf("  %12llu %12.3f %12.1f %8s\n", static_cast<unsigned long long>(bytes),
             bounced_us / 2 / count, static_cast<double>(bytes) * count / streamed_us,
             options.check ? std::to_string(wrong).c_str() : "-");
      fflush(stdout);
    }
    if (bytes > options.bytes_max / options.factor) break;
    bytes = std::max(bytes * options.factor, bytes + 1);
  }
  side.drop_buffers();
  return wrong_total == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options;
  cli::CommandLine app("Two processes over a network plugin of NCCL, without a GPU");
  app.add_option("plugin", options.plugin, "Path, or NAME for libnccl-net-NAME.so").required();
  app.add_option("-b", options.bytes_min, "Smallest message").size();
  app.add_option("-e", options.bytes_max, "Largest message")
      .size()
      .range(uint64_t{0}, uint64_t{1} << 30);
  app.add_option("-f", options.factor, "Factor between sizes")
      .range(uint64_t{2}, uint64_t{1} << 20);
  app.add_option("-n", options.count, "Messages for each size").range(1, 100'000'000);
  app.add_option("-w", options.window, "Messages under way").range(1, 32);
  app.add_option("-c", options.check, "Compare what arrives with what was sent");
  app.add_option("--abi", options.abi, "Version of the interface; 0: the newest")
      .range(0, ncclnet::kVersionMax);
  app.add_option("--device", options.device, "Device of the plugin");
  app.add_option("--timeout", options.timeout_s, "Seconds for a step").range(1, 3600);
  if (const auto status = app.parse(argc, argv)) return *status;
  if (options.bytes_min > options.bytes_max) give_up("-b is above -e");
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) give_up("socketpair");
  fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) give_up("fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(sockets[0]);
    _exit(play(options, 1, sockets[1]));
  }
  close(sockets[1]);
  const int result = play(options, 0, sockets[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return result != 0 || status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::output::run_tool("nccl_net_perf", weir::perf::run, argc, argv);
}
