// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/network.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <mutex>
#include <string_view>

namespace weir::plugins::ucx {
namespace {

std::mutex& life_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::atomic<int> open_count{0};
std::atomic<bool> forked_away{false};

// UCX's own thread, which makes its connections, does not come along into a forked child, and UCX
// does not start another while it believes to have one.
void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    (void)pthread_atfork(nullptr, nullptr, [] {
      if (open_count.load() > 0) forked_away.store(true);
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

}  // namespace

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

std::string Network::open(uint32_t rank_count) {
  be_quiet();
  const Listening listening(&heard_);
  const std::lock_guard lock(life_mutex());
  watch_forks();
  if (forked_away.load()) {
    return "this process was forked from one that had a communicator over UCX open, which UCX does "
           "not "
           "survive; fork before the first one, or exec";
  }
  const std::string reason = open_with(nullptr, rank_count);
  const char* asked_for = getenv("UCX_TLS");
  const bool any = asked_for == nullptr || std::string_view(asked_for) == "all";
  if (reason.empty() || !any) return reason;
  // Of all transports one needs what may be too small, as in many containers: /dev/shm.
  end();
  return open_with("^posix", rank_count).empty() ? "" : reason;
}

// `transports`: in place of UCX_TLS; null: as it says.
std::string Network::open_with(const char* transports, uint32_t rank_count) {
  const auto failed = [&](const char* call, ucs_status_t status) {
    return std::string(call) + ": " + ucs_status_string(status) + heard_.take() +
           "; is what UCX_TLS and UCX_NET_DEVICES ask for there (`ucx_info -d` lists it)?";
  };
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return failed("ucp_config_read", status);
  if (transports != nullptr) (void)ucp_config_modify(config, "TLS", transports);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_REQUEST_SIZE |
                      UCP_PARAM_FIELD_REQUEST_INIT;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM;
  params.estimated_num_eps = rank_count;
  params.name = "weir";
  params.request_size = sizeof(void*);
  params.request_init = [](void* request) { *static_cast<void**>(request) = nullptr; };
  status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) {
    context_ = nullptr;
    return failed("ucp_init", status);
  }
  shares_memory_ = false;
  const std::string description = describe(context_);
  for (const std::string_view name : {" posix/", " sysv/", " xpmem/"}) {
    shares_memory_ = shares_memory_ || description.find(name) != std::string::npos;
  }
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // One thread at a time, but not always the same.
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    worker_ = nullptr;
    return failed("ucp_worker_create", status);
  }
  ++open_count;
  return "";
}

void Network::close() {
  if (context_ == nullptr) return;
  const Listening listening(&heard_);
  const std::lock_guard lock(life_mutex());
  end();
}

void Network::end() {
  if (worker_ != nullptr) {
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
