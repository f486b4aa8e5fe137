// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/network.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "plugins/ucx/devices.h"
#include "plugins/ucx/socket_watch.h"

namespace weir::plugins::ucx {
namespace {

std::mutex& life_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::atomic<int> open_count{0};
std::atomic<bool> forked_away{false};

// UCX's own thread, which makes its connections, does not exist in a forked child, and UCX does not
// start another while it believes that it has one.
void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    (void)pthread_atfork(nullptr, nullptr, [] {
      // UCX does not work either if another thread was in the middle of it, which then holds the
      // lock.
      if (open_count.load() > 0 || !life_mutex().try_lock()) forked_away.store(true);
      new (&life_mutex()) std::mutex;
    });
  });
}

// UCX tells which transports it has only by printing them.
std::string describe(ucp_context_h context) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return "";
  ucp_context_print_info(context, stream);
  fclose(stream);
  std::string description = text != nullptr ? text : "";
  free(text);
  return description;
}

bool has_any(const std::string& description, std::initializer_list<std::string_view> transports) {
  return std::any_of(transports.begin(), transports.end(), [&](std::string_view name) {
    return description.find(" " + std::string(name)) != std::string::npos;
  });
}

// A user's setting of the queues' size takes precedence.
bool queue_is_set() {
  return getenv("UCX_MM_FIFO_SIZE") != nullptr || getenv("UCX_POSIX_FIFO_SIZE") != nullptr ||
         getenv("UCX_SYSV_FIFO_SIZE") != nullptr || getenv("UCX_XPMEM_FIFO_SIZE") != nullptr;
}

constexpr const char* kTcpSegmentName = "UCX_TCP_RX_SEG_SIZE";
constexpr const char* kTcpSegmentKey =
    "RX_SEG_SIZE";  // for ucp_config_modify; no other transport has it

}  // namespace

// Up to here the memory behind them is that of UCX's own 64.
uint32_t queue_places(uint32_t rank_count) { return rank_count <= 2 ? 128 : 256; }

// What is requested of UCX in addition to the environment.
struct Network::ContextOptions {
  uint32_t rank_count = 0;
  const char* transports = nullptr;  // in place of UCX_TLS
  bool copies_nothing = false;       // UCX_ZCOPY_THRESH is 0
  uint32_t queue_places = 0;         // 0: as UCX has it
  uint64_t tcp_segment_bytes = 0;    // 0: as UCX or the environment has it
  std::string devices = {};          // UCX_NET_DEVICES; "": as the environment has it

  bool any() const {
    return copies_nothing || queue_places != 0 || tcp_segment_bytes != 0 || !devices.empty();
  }
  // Names as ucp_config_modify wants them.
  std::vector<std::pair<const char*, std::string>> settings() const;
};

std::vector<std::pair<const char*, std::string>> Network::ContextOptions::settings() const {
  std::vector<std::pair<const char*, std::string>> list;
  if (transports != nullptr) list.emplace_back("TLS", transports);
  if (!devices.empty()) list.emplace_back("NET_DEVICES", devices);
  if (copies_nothing) list.emplace_back("ZCOPY_THRESH", "0");
  if (queue_places != 0) list.emplace_back("MM_FIFO_SIZE", std::to_string(queue_places));
  if (tcp_segment_bytes != 0) {
    list.emplace_back(kTcpSegmentKey, std::to_string(tcp_segment_bytes));
    // Otherwise each unexpected message would take a segment's room, 128 of which are allocated at
    // once.
    if (getenv("UCX_RX_MPOOL_SIZES") == nullptr) list.emplace_back("RX_MPOOL_SIZES", "64,1kb,64kb");
  }
  return list;
}

uint32_t library_version_number() {
  unsigned major = 0, minor = 0, release = 0;
  ucp_get_version(&major, &minor, &release);
  return major << 16 | (minor & 0xffu) << 8 | (release & 0xffu);
}

std::string version_text(uint32_t number) {
  return std::to_string(number >> 16) + "." + std::to_string(number >> 8 & 0xffu) + "." +
         std::to_string(number & 0xffu);
}

std::string library_version() { return version_text(library_version_number()); }

std::string Network::open(uint32_t rank_count, const std::vector<std::string>& cards) {
  cards_ = cards;
  be_quiet();
  const Listening listening(&heard_);
  const std::lock_guard lock(life_mutex());
  watch_forks();
  if (forked_away.load()) {
    return "this process was forked from one that had a communicator over UCX open, and UCX cannot "
           "be used after such a fork; fork before the first communicator over UCX, or call exec";
  }
  std::string reason = open_with(nullptr, rank_count);
  const char* asked_for = getenv("UCX_TLS");
  const bool any = asked_for == nullptr || std::string_view(asked_for) == "all";
  if (reason.empty() || !any) return reason;
  // One of the transports needs /dev/shm, which may be too small, as in many containers.
  end();
  return open_with("^posix", rank_count).empty() ? "" : reason;
}

// `transports`: in place of UCX_TLS; null: as it says. The transports that UCX has decide what else
// is requested of it.
std::string Network::open_with(const char* transports, uint32_t rank_count) {
  ContextOptions options = {rank_count, transports};
  std::string reason = make_context(options);
  if (!reason.empty()) return reason;
  const std::string description = describe(context_);
  shares_memory_ = has_any(description, {"posix/", "sysv/", "xpmem/"});
  has_loopback_ = shares_memory_ || has_any(description, {"self/"});
  is_tcp_only_ = has_any(description, {"tcp/"}) && !has_any(description, {"rc_", "dc_", "ud_"});
  options.copies_nothing = is_tcp_only_;
  if (shares_memory_ && !queue_is_set()) options.queue_places = queue_places(rank_count);
  tcp_segment_.clear();
  if (has_any(description, {"tcp/"})) {
    const char* asked_for = getenv(kTcpSegmentName);
    if (asked_for == nullptr) options.tcp_segment_bytes = tcp_segment_bytes(rank_count);
    tcp_segment_ = asked_for != nullptr ? asked_for : std::to_string(options.tcp_segment_bytes);
  }
  if (!cards_.empty() && getenv("UCX_NET_DEVICES") == nullptr) {
    options.devices = devices_with(description, cards_);
  }
  devices_ = options.devices;
  if (options.any()) {
    ucp_cleanup(context_);
    reason = make_context(options);
    if (!reason.empty()) return reason;
  }
  ucp_context_attr_t attributes = {};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  takes_cuda_ = ucp_context_query(context_, &attributes) == UCS_OK &&
                (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread at a time, but not always the same.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  const bool has_tcp = !tcp_segment_.empty();
  const std::vector<int> before = has_tcp ? epoll_descriptors() : std::vector<int>();
  const ucs_status_t status = ucp_worker_create(context_, &worker_params, &worker_);
  epolls_.clear();
  if (has_tcp) {
    const std::vector<int> after = epoll_descriptors();
    std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                        std::back_inserter(epolls_));
  }
  if (status != UCS_OK) {
    worker_ = nullptr;
    return failed("ucp_worker_create", status);
  }
  // UCX warns of a name that it does not know, and a later version may not know this one.
  if (options.tcp_segment_bytes != 0 && strstr(heard_.text, kTcpSegmentKey) != nullptr) {
    (void)heard_.take();
    tcp_segment_ = "UCX's own";
  }
  ++open_count;
  return "";
}

std::string Network::failed(const char* call, ucs_status_t status) {
  return std::string(call) + ": " + ucs_status_string(status) + heard_.take() +
         "; does this machine have what UCX_TLS and UCX_NET_DEVICES name (`ucx_info -d` lists what "
         "it has)?";
}

std::string Network::make_context(const ContextOptions& options) {
  context_ = nullptr;
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failed("ucp_config_read", status);
  for (const auto& [name, value] : options.settings()) {
    status = ucp_config_modify(config, name, value.c_str());
    if (status == UCS_OK) continue;
    ucp_config_release(config);
    return failed((std::string(name) + "=" + value).c_str(), status);
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_SIZE |
                      UCP_PARAM_FIELD_REQUEST_INIT;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM;
  params.estimated_num_eps = options.rank_count;
  params.name = "weir";
  params.request_size = sizeof(void*);
  params.request_init = [](void* request) { *static_cast<void**>(request) = nullptr; };
  status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status == UCS_OK) return "";
  context_ = nullptr;
  return failed("ucp_init", status);
}

void Network::close() {
  if (context_ == nullptr) return;
  const Listening listening(&heard_);
  const std::lock_guard lock(life_mutex());
  end();
}

void Network::end() {
  if (worker_ != nullptr) {
    const SocketWatch watch(epolls_);
    ucp_worker_destroy(worker_);
    --open_count;
  }
  if (context_ != nullptr) ucp_cleanup(context_);
  abandon();
}

void Network::abandon() {
  worker_ = nullptr;
  context_ = nullptr;
}

std::string Network::read_address(std::vector<unsigned char>* address) const {
  const Listening listening(&heard_);
  ucp_address_t* given = nullptr;
  size_t bytes = 0;
  const ucs_status_t status = ucp_worker_get_address(worker_, &given, &bytes);
  if (status != UCS_OK) {
    return std::string("ucp_worker_get_address: ") + ucs_status_string(status) + heard_.take();
  }
  const auto* begin = reinterpret_cast<const unsigned char*>(given);
  address->assign(begin, begin + bytes);
  ucp_worker_release_address(worker_, given);
  return "";
}

}  // namespace weir::plugins::ucx
